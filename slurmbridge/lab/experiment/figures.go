package experiment

import (
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/figure"
)

// picture is one of a report's. Its sheet is nil where the report has nothing to show.
type picture struct {
	name string
	draw func(r *Report) *figure.Sheet
}

// pictures lists them; numbers are the thesis's.
func pictures() []picture {
	out := []picture{
		{
			"fig01-profiles-ml",
			func(*Report) *figure.Sheet { return profiles("Fig. 1: ML applications alone", "vgg16", "resnet50") },
		},
		{
			"fig02-profiles-hpc",
			func(*Report) *figure.Sheet { return profiles("Fig. 2: HPC applications alone", "lammps", "qmcpack") },
		},
		{"fig03-pairs", (*Report).pairsSheet},
	}
	for i, wl := range Workloads() {
		out = append(out, picture{fmt.Sprintf("fig%d-%s", 10+i, wl), func(r *Report) *figure.Sheet {
			return r.overTime(fmt.Sprintf("Fig. %d: %s, first job set", 10+i, wl), wl)
		}})
	}
	return append(
		out,
		picture{"fig15-slowdowns", (*Report).classes},
		picture{"fig16-training", (*Report).training},
		picture{"fig17-cost", (*Report).costs},
		picture{"makespans", (*Report).makespans},
		picture{"trade-off", (*Report).tradeOffCurve},
	)
}

// Figures draws the report: one picture in dir for every figure of the thesis that the report has
// data for, one of all makespans and one of the trade-off. Format is "png" or "svg". Missing
// policies and workloads are left out. It returns the paths written, in the figures' order, even
// with an error. The same report gives the same pictures.
func (r *Report) Figures(dir, format string) ([]string, error) {
	if !slices.Contains(figure.Formats, format) {
		return nil, fmt.Errorf("figures: there is no format %q; there are %s", format, strings.Join(figure.Formats, " and "))
	}
	//nolint:gosec // pictures are public
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("figures: make folder %s: %w", dir, err)
	}
	var paths []string
	for _, p := range pictures() {
		sheet := p.draw(r)
		if sheet == nil {
			continue
		}
		path := filepath.Join(dir, p.name+"."+format)
		if err := sheet.Write(path); err != nil {
			return paths, fmt.Errorf("figures: %w", err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// lines returns a workload's lines and their policies in the order of a table.
func (r *Report) lines(wl string) ([]string, map[string]*Line) {
	have := map[string]*Line{}
	for name, l := range r.Workloads[wl] {
		if l != nil {
			have[name] = l
		}
	}
	return inOrder(slices.Collect(maps.Keys(have))), have
}

// inOrder sorts policies as Names does; the clairvoyant comes after them, and then the rest by
// name.
func inOrder(names []string) []string {
	known := append(Names(), Clairvoyant)
	rank := func(n string) int {
		if i := slices.Index(known, n); i >= 0 {
			return i
		}
		return len(known)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a, b)) })
	return names
}

// policyColour is a policy's colour in all figures; white where it isn't known.
func policyColour(name string) color.Color {
	if s, ok := policy.Named(name); ok {
		return s.Colour
	}
	if name == Clairvoyant {
		return figure.Ink
	}
	return figure.White
}

// Figures of the thesis on the random workload (ch. 5) that no Line holds.
var (
	// thesisUnslowed is in how many of 30 jobs it saw no slowdown (Fig. 15).
	thesisUnslowed = map[string]float64{"dqngpu": 20, "tetris": 14, "deeprm_max": 14}
	// thesisTotal is its makespan over SJF's with training (Fig. 16), and
	// thesisTraining the part of it that is training, where it says so.
	thesisTotal    = map[string]float64{"tetris": 1.294, "dqngpu": 1.081, "deeprm_max": 1.303, "deeprm_mean": 1.346}
	thesisTraining = map[string]float64{"dqngpu": 0.054, "deeprm_max": 0.048}
)

// Size of the charts that are wider than high.
const wide, high = 24 * figure.CM, 10 * figure.CM

// onRandom draws a chart with a place on the x axis for each policy that has a line on the random
// workload; nil where none has. first: it is the chart's first.
func (r *Report) onRandom(title, y string, keep func(name string) bool,
	draw func(c *figure.Chart, n string, l *Line, x float64, first bool),
) (*figure.Chart, *figure.Sheet) {
	names, lines := r.lines("random")
	names = slices.DeleteFunc(names, func(n string) bool { return !keep(n) })
	if len(names) == 0 {
		return nil, nil
	}
	c := figure.New(title, "", y)
	for i, n := range names {
		draw(c, n, lines[n], float64(i), i == 0)
	}
	figure.Nominal(&c.X, names)
	c.Y.Min = 0
	return c, figure.Single(c, wide, high)
}

func all(string) bool { return true }

// level draws a rule over a chart of policies.
func level(c *figure.Chart, at float64, colour color.Color, name string) {
	if c != nil {
		c.Level(at, int(math.Round(c.X.Max+0.5)), colour, name)
	}
}

// slowdownClasses are the parts of Fig. 15's bars, from the bottom on.
var slowdownClasses = []struct {
	name   string
	colour color.Color
	jobs   func(l *Line) float64
}{
	{"up to 2 %", figure.Green, func(l *Line) float64 { return l.LE2 }},
	{"2 to 10 %", figure.Sky, func(l *Line) float64 { return l.LT10 - l.LE2 }},
	{"10 to 20 %", figure.Orange, func(l *Line) float64 { return l.LT20 - l.LT10 }},
	{"20 % and more", figure.Vermillion, func(l *Line) float64 { return l.GE20 }},
}

// classes draws Fig. 15: how many jobs of the random workload slowed by how much.
func (r *Report) classes() *figure.Sheet {
	var thesis plotter.XYs
	c, sheet := r.onRandom("Fig. 15: slowdown of the random workload's jobs", "jobs, mean over the job sets", all,
		func(c *figure.Chart, n string, l *Line, x float64, first bool) {
			col := figure.Column{X: x, Width: 0.6}
			for _, class := range slowdownClasses {
				col.Parts = append(col.Parts, figure.Part{Height: class.jobs(l), Colour: class.colour})
			}
			if l.OOM > 0 {
				col.Text = fmt.Sprintf("%.0f runs lost", l.OOM)
			}
			parts := c.Column(col)
			if first {
				for k, class := range slices.Backward(slowdownClasses) { // as the bars are stacked
					c.Key(class.name, parts[k])
				}
			}
			if y, ok := thesisUnslowed[n]; ok {
				thesis = append(thesis, plotter.XY{X: x, Y: y})
			}
		})
	if c != nil {
		c.Marks(thesis, "thesis: none")
	}
	return sheet
}

// training draws Fig. 16: makespans relative to SJF's with the time of training on top, next to the
// thesis's.
func (r *Report) training() *figure.Sheet {
	seen := false
	c, sheet := r.onRandom("Fig. 16: makespan of the random workload and training", "makespan ÷ SJF's", all,
		func(c *figure.Chart, n string, l *Line, x float64, first bool) {
			bar := func(x, width, makespan, training float64, colour color.Color) []plot.Thumbnailer {
				return c.Column(figure.Column{
					X: x, Width: width, Text: fmt.Sprintf("%.2f", makespan+training),
					Parts: []figure.Part{{Height: makespan, Colour: colour}, {Height: training, Colour: figure.Ink}},
				})
			}
			width := 0.7
			if total, printed := thesisTotal[n]; printed && l.ThesisVsSJF > 0 {
				if own := bar(x+0.2, 0.4, total-thesisTraining[n], thesisTraining[n], figure.White); !seen {
					seen = true
					c.Key("thesis", own[0])
				}
				x, width = x-0.2, 0.4
			}
			parts := bar(x, width, l.MakespanVsSJF, l.WithTraining-l.MakespanVsSJF, policyColour(n))
			if first {
				c.Key("training", parts[1])
			}
		})
	level(c, 1, figure.Ink, "SJF")
	return sheet
}

// countings are the two ways of the thesis to count what sharing costs on EC2 (Fig. 17),
// and what it found: shared over whole instances.
var countings = []struct {
	name, thesis string
	colour       color.Color
	cost         func(l *Line) float64
	found        float64
}{
	{"1: by GPU memory", "thesis, 1: 0.7014", figure.Blue, func(l *Line) float64 { return l.Cost1 }, 0.7014},
	{"2: by vCPU and memory", "thesis, 2: 0.5002", figure.Orange, func(l *Line) float64 { return l.Cost2 }, 0.5002},
}

// costs draws Fig. 17 of the policies that share.
func (r *Report) costs() *figure.Sheet {
	shares := func(n string) bool { s, _ := policy.Named(n); return !s.Alone }
	c, sheet := r.onRandom("Fig. 17: EC2 cost of the random workload, shared ÷ whole instances", "cost ÷ whole instances'",
		shares, func(c *figure.Chart, _ string, l *Line, x float64, first bool) {
			for k, how := range countings {
				v := how.cost(l)
				parts := c.Column(figure.Column{
					X: x - 0.2 + 0.4*float64(k), Width: 0.4,
					Parts: []figure.Part{{Height: v, Colour: how.colour}}, Text: fmt.Sprintf("%.2f", v),
				})
				if first {
					c.Key(how.name, parts...)
				}
			}
		})
	level(c, 1, figure.Ink, "whole instances")
	for _, how := range countings {
		level(c, how.found, how.colour, how.thesis)
	}
	return sheet
}

// makespans draws every policy on every workload, with its spread over the job
// sets and what the thesis found.
func (r *Report) makespans() *figure.Sheet {
	var wls, names []string
	for _, wl := range Workloads() {
		of, _ := r.lines(wl)
		if names = append(names, of...); len(of) > 0 {
			wls = append(wls, wl)
		}
	}
	if len(wls) == 0 {
		return nil
	}
	c := figure.New("Makespans; bars: standard deviation over the job sets", "", "makespan ÷ SJF's")
	var thesis plotter.XYs
	var ends figure.Spread
	figure.SideBySide(c, wls, inOrder(uniq(names)), func(wl, n string, x, width float64) []plot.Thumbnailer {
		l := r.Workloads[wl][n]
		if l == nil {
			return nil
		}
		ends.Append(x, l.MakespanVsSJF, l.MakespanSD)
		if l.ThesisVsSJF > 0 {
			thesis = append(thesis, plotter.XY{X: x, Y: figure.Finite(l.ThesisVsSJF)})
		}
		return c.Column(figure.Column{
			X: x, Width: width,
			Parts: []figure.Part{{Height: l.MakespanVsSJF, Colour: policyColour(n)}},
		})
	})
	c.YErrors(ends)
	c.Marks(thesis, "thesis")
	c.Level(1, len(wls), figure.Ink, "SJF")
	return figure.Single(c, 30*figure.CM, 12*figure.CM)
}

// resources are the thesis's four (eq. 3), in percent of its card.
var resources = []struct {
	name   string
	colour color.Color
	dashes []vg.Length
	of     func(u rlcore.Use) float64
}{
	{"GPU", figure.Vermillion, nil, func(u rlcore.Use) float64 { return 100 * u.GPU }},
	{"memory", figure.Blue, nil, func(u rlcore.Use) float64 { return 100 * u.MemMiB / rlcore.TitanXp.MemMiB }},
	{"cores", figure.Green, []vg.Length{6, 3}, func(u rlcore.Use) float64 { return 100 * u.Core }},
	{
		"PCIe", figure.Orange,
		[]vg.Length{2, 2},
		func(u rlcore.Use) float64 { return 100 * u.PCIeMBps / rlcore.TitanXp.PCIeMBps },
	},
}

// profiles draws what applications use of the card over their run alone.
func profiles(title string, names ...string) *figure.Sheet {
	s := &figure.Sheet{Title: title, Rows: [][]*figure.Chart{nil}, W: wide, H: 8 * figure.CM}
	for _, name := range names {
		c := figure.New(name, "time, s", "use, % of the card")
		for _, r := range resources {
			l := c.Line(figure.Steps(thesisApps[name], r.of), r.colour, 1.6, r.dashes...)
			l.StepStyle = plotter.PostStep
			c.Key(r.name, l)
		}
		c.X.Min, c.Y.Min, c.Y.Max = 0, 0, 105
		s.Rows[0] = append(s.Rows[0], c)
	}
	return s
}

// pairsSheet draws the pair matrix with its numbers, the first victim on top: the slower, the darker. A cell that the
// matrix says nothing of stays white.
func (r *Report) pairsSheet() *figure.Sheet {
	if r.Pairs == nil || len(r.Pairs.Apps) == 0 {
		return nil
	}
	n := len(r.Pairs.Apps)
	c := figure.New("Fig. 3: slowdown of each application next to each other, × its time alone", "next to", "")
	most := 2.0 // at least, so that near-equal numbers look so
	for _, row := range r.Pairs.Slowdown {
		for _, s := range row {
			most = max(most, figure.Finite(s))
		}
	}
	for victim, row := range r.Pairs.Slowdown[:min(n, len(r.Pairs.Slowdown))] {
		for other, s := range row[:min(n, len(row))] {
			x, y := float64(other), float64(n-1-victim)
			words, colour := fmt.Sprintf("%.2f", s), color.Color(figure.White)
			switch {
			case s == 0:
				words, colour = "no memory", figure.Light
			case !figure.IsFinite(s):
				words = ""
			default: // from white to blue
				part := max(0, min(1, (s-1)/(most-1)))
				shade := func(to uint8) uint8 { return uint8(255 - part*float64(255-to)) }
				colour = color.RGBA{shade(figure.Sky.R), shade(figure.Sky.G), shade(figure.Sky.B), 255}
			}
			c.Box(x-0.5, x+0.5, y-0.5, y+0.5, colour)
			c.Texts(plotter.XYs{{X: x, Y: y}}, []string{words}).Offset.Y = vg.Points(-3)
		}
	}
	figure.Nominal(&c.X, r.Pairs.Apps)
	upward := slices.Clone(r.Pairs.Apps)
	slices.Reverse(upward)
	figure.Nominal(&c.Y, upward)
	side := vg.Length(n) * 2.4 * figure.CM
	return figure.Single(c, side+5*figure.CM, 0.6*side+3*figure.CM)
}

// overTime draws how busy the GPU was and how much of its memory was held, on the
// first seed's jobs, a row for each policy.
func (r *Report) overTime(title, wl string) *figure.Sheet {
	names, lines := r.lines(wl)
	s := &figure.Sheet{Title: title, W: 26 * figure.CM}
	end := 0.0
	for _, n := range names {
		res := lines[n].first
		spec, known := policy.Named(n)
		if res == nil || len(res.Track) == 0 || !known || spec.Minor {
			continue
		}
		end = max(end, until(res))
		gpu := figure.New(fmt.Sprintf("%s: %.0f s, GPU %.0f %% busy", n, res.MakespanS, 100*res.GPUUtil), "", "%")
		gpu.Area(track(res, func(x *sim.Sample) float64 { return x.GPU }), policyColour(n))
		memory := figure.New(fmt.Sprintf("%s: memory %.0f %% held", n, 100*res.MemUtil), "", "%")
		memory.Area(track(res, func(x *sim.Sample) float64 { return x.Mem }), policyColour(n))
		s.Rows = append(s.Rows, []*figure.Chart{gpu, memory})
	}
	if len(s.Rows) == 0 {
		return nil
	}
	for i, row := range s.Rows {
		for _, c := range row {
			c.X.Min, c.X.Max, c.Y.Min, c.Y.Max = 0, end, 0, 100
			c.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 50, Label: "50"}, {Value: 100, Label: "100"}}
			if i == len(s.Rows)-1 {
				c.X.Label.Text = "time, s"
			} else {
				figure.Unlabelled(&c.X)
			}
		}
	}
	s.H = (2.5 + 2.6*vg.Length(len(s.Rows))) * figure.CM
	return s
}

// until is when a result's last job ended, s.
func until(r *sim.Result) float64 {
	return max(figure.Finite(r.MakespanS), figure.Finite(r.Track[len(r.Track)-1].AtS))
}

// track are the points of a step function of the track, in s and percent.
func track(r *sim.Result, of func(x *sim.Sample) float64) plotter.XYs {
	var out plotter.XYs
	for i := range r.Track {
		y, next := 100*figure.Finite(of(&r.Track[i])), until(r)
		if i+1 < len(r.Track) {
			next = figure.Finite(r.Track[i+1].AtS)
		}
		out = append(out, plotter.XY{X: figure.Finite(r.Track[i].AtS), Y: y}, plotter.XY{X: next, Y: y})
	}
	return out
}

// tradeOffCurve draws dqn on the random workload under contracts from strict to
// none: what few slowdowns cost in makespan.
func (r *Report) tradeOffCurve() *figure.Sheet {
	if len(r.TradeOff) == 0 {
		return nil
	}
	points := slices.Clone(r.TradeOff)
	strictness := func(t TradeOff) float64 { return cmp.Or(t.Contract, math.Inf(1)) } // none is the widest
	slices.SortStableFunc(points, func(a, b TradeOff) int { return cmp.Compare(strictness(a), strictness(b)) })
	c := figure.New("Slowdown against makespan: dqn, random workload, by the slowdown that a contract allows; bars: "+
		"standard deviation", "makespan ÷ SJF's", "jobs slowed by less than 10 %, mean over the job sets")
	var ends figure.Spread
	var texts []string
	for _, t := range points {
		s := "no contract"
		if t.Contract > 0 {
			s = fmt.Sprintf("%g", t.Contract)
		}
		if t.OOM > 0 {
			s += fmt.Sprintf(", %d runs lost", t.OOM)
		}
		ends.Append(t.MakespanVsSJF, t.LT10, t.MakespanSD)
		texts = append(texts, s)
	}
	c.Y.Min, c.Y.Max = 0, float64(r.Jobs)
	line, dots := c.Line(ends.XYs, policyColour(ours), 1.6), c.Dots(ends.XYs, policyColour(ours), 3)
	c.Key(ours, line, dots)
	c.XErrors(ends)
	labels := c.Texts(ends.XYs, texts)
	// The curve rises to the right: below it there is room.
	labels.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(-3)}
	for i := range labels.TextStyle {
		labels.TextStyle[i].XAlign, labels.TextStyle[i].YAlign = text.XLeft, text.YTop
	}
	c.Rule(plotter.XY{X: 1, Y: c.Y.Min}, plotter.XY{X: 1, Y: c.Y.Max}, figure.Ink, "SJF's makespan")
	return figure.Single(c, wide, 12*figure.CM)
}
