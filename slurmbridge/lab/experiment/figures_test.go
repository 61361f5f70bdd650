package experiment

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// small is a report made by hand: every figure has something to show.
func small() *Report {
	track := &sim.Result{
		MakespanS: 100, GPUUtil: 0.6, MemUtil: 0.3,
		Track: []sim.Sample{{AtS: 0, GPU: 0.9, Mem: 0.4, Running: 2}, {AtS: 40, GPU: 0.4, Mem: 0.2, Running: 1}, {AtS: 100}},
	}
	line := func(x float64) *Line {
		return &Line{
			MakespanVsSJF: x, MakespanSD: 0.02, WithTraining: x + 0.01, LE2: 20, LT10: 24, LT20: 27, GE20: 3,
			Cost1: x * 0.8, Cost2: x * 0.57, first: track,
		}
	}
	r := &Report{
		Jobs: 30, Workloads: map[string]map[string]*Line{},
		Pairs:    &PairMatrix{Apps: []string{"a", "b"}, Slowdown: [][]float64{{0, 1.4}, {1.1, 2.2}}},
		TradeOff: []TradeOff{{0, 0.7, 0.03, 9, 0}, {1.1, 0.9, 0.02, 27, 1}, {1.5, 0.75, 0.02, 15, 0}},
	}
	for _, wl := range Workloads() {
		r.Workloads[wl] = map[string]*Line{"sjf": line(1), "dqngpu": line(0.9), "dqn": line(0.8), Clairvoyant: line(0.7)}
	}
	r.Workloads["random"]["dqngpu"].ThesisVsSJF = 1.027
	return r
}

var allFigures = []string{
	"fig01-profiles-ml", "fig02-profiles-hpc", "fig03-pairs",
	"fig10-gpu_heavy", "fig11-gpu_light", "fig12-mem_heavy", "fig13-mem_light", "fig14-random",
	"fig15-slowdowns", "fig16-training", "fig17-cost", "makespans", "trade-off",
}

// draw writes the report's figures and returns their names without the format.
func drawAll(t *testing.T, r *Report, format string) (names []string, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "new", "pictures")
	paths := must.Get(r.Figures(dir, format))(t)
	for _, p := range paths {
		if filepath.Dir(p) != dir || filepath.Ext(p) != "."+format {
			t.Errorf("%s isn't a %s in %s", p, format, dir)
		}
		names = append(names, strings.TrimSuffix(filepath.Base(p), "."+format))
	}
	return names, dir
}

func TestFiguresPNG(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	names, dir := drawAll(t, small(), "png")
	if !slices.Equal(names, allFigures) {
		t.Fatalf("wrote %v, want %v", names, allFigures)
	}
	for _, n := range names {
		data := must.Get(os.ReadFile(filepath.Join(dir, n+".png")))(t)
		img, err := png.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", n, err)
		}
		colours := map[any]bool{}
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				colours[img.At(x, y)] = true
			}
		}
		if len(colours) < 10 {
			t.Errorf("%s has %d colours: it is empty", n, len(colours))
		}
	}
}

// writing is all text of an SVG; the test fails where it isn't XML.
func writing(t *testing.T, path string) string {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	d, out := xml.NewDecoder(bytes.NewReader(data)), ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if c, ok := tok.(xml.CharData); ok {
			out += string(c) + "\n"
		}
	}
}

// What a reader looks for is written there, in words.
func TestFiguresSayWhatTheyShow(t *testing.T) {
	names, dir := drawAll(t, small(), "svg")
	if !slices.Equal(names, allFigures) {
		t.Fatalf("wrote %v, want %v", names, allFigures)
	}
	for name, words := range map[string][]string{
		"fig01-profiles-ml":  {"vgg16", "resnet50", "PCIe", "time, s", "use, % of the card"},
		"fig02-profiles-hpc": {"lammps", "qmcpack"},
		"fig03-pairs":        {"no memory", "1.40", "1.10", "2.20", "next to"},
		"fig14-random":       {"sjf: 100 s, GPU 60 % busy", "dqn: memory 30 % held", "time, s"},
		"fig15-slowdowns":    {"up to 2 %", "20 % and more", "thesis: none", "dqngpu"},
		"fig16-training":     {"1.08", "0.91", "training", "thesis", "makespan ÷ SJF's"},
		"fig17-cost":         {"thesis, 1: 0.7014", "thesis, 2: 0.5002", "0.64", "dqn"},
		"makespans":          {"heavy", "random", "thesis", Clairvoyant},
		"trade-off":          {"no contract", "1.1, 1 runs lost", "1.5", "SJF's makespan"},
	} {
		text := writing(t, filepath.Join(dir, name+".svg"))
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %q isn't written there", name, w)
			}
		}
	}
	if text := writing(t, filepath.Join(dir, "fig14-random.svg")); strings.Contains(text, Clairvoyant) {
		t.Error("fig14 shows who isn't to be shown over time")
	}
}

func TestFiguresOfSameReportAreSame(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	_, one := drawAll(t, small(), "svg")
	names, two := drawAll(t, small(), "svg")
	for _, n := range names {
		if writing(t, filepath.Join(one, n+".svg")) != writing(t, filepath.Join(two, n+".svg")) {
			t.Errorf("%s differs", n)
		}
	}
}

func TestFiguresLeaveOutWhatIsMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	always := allFigures[:2]
	for _, c := range []struct {
		name   string
		change func(r *Report)
		want   []string
	}{
		{"nothing there", func(r *Report) { *r = Report{} }, always},
		{
			"no random", func(r *Report) { delete(r.Workloads, "random"); r.TradeOff = nil },
			append(slices.Clone(allFigures[:7]), "makespans"),
		},
		{"only sjf", func(r *Report) {
			r.Pairs, r.TradeOff = nil, nil
			r.Workloads = map[string]map[string]*Line{"random": {"sjf": r.Workloads["random"]["sjf"]}}
		}, append(slices.Clone(always), "fig14-random", "fig15-slowdowns", "fig16-training", "makespans")},
		{"read back from JSON: no tracks", func(r *Report) {
			for _, lines := range r.Workloads {
				for _, l := range lines {
					l.first = nil
				}
			}
		}, append(slices.Clone(allFigures[:3]), allFigures[8:]...)},
		{"an unknown policy, a nil line, figures that can't be drawn", func(r *Report) {
			r.Workloads["random"]["mine"] = &Line{MakespanVsSJF: math.NaN(), Cost1: math.Inf(1), LE2: 40, first: &sim.Result{}}
			r.Workloads["random"]["greedy"] = nil
			r.Workloads["mem_light"] = map[string]*Line{}
			r.TradeOff[1].MakespanVsSJF = math.NaN()
			r.Pairs.Slowdown = [][]float64{{math.NaN()}}
		}, slices.DeleteFunc(slices.Clone(allFigures), func(n string) bool { return n == "fig13-mem_light" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := small()
			c.change(r)
			if names, _ := drawAll(t, r, "svg"); !slices.Equal(names, c.want) {
				t.Errorf("wrote %v, want %v", names, c.want)
			}
		})
	}
}

func TestFiguresErrors(t *testing.T) {
	if _, err := small().Figures(t.TempDir(), "pdf"); err == nil || !strings.Contains(err.Error(), "pdf") {
		t.Errorf("pdf: error %v", err)
	}
	// A file stands where the folder should be: nobody can write there.
	dir := filepath.Join(t.TempDir(), "file", "below")
	must.OK(t, os.WriteFile(filepath.Dir(dir), nil, 0o600))
	if paths, err := small().Figures(dir, "png"); err == nil || !strings.Contains(err.Error(), dir) || len(paths) > 0 {
		t.Errorf("wrote %v, error %v", paths, err)
	}
}

func TestEveryPolicyHasItsColour(t *testing.T) {
	seen := map[any]string{}
	for _, n := range append(Names(), Clairvoyant) {
		c := policyColour(n)
		if other, ok := seen[c]; ok {
			t.Errorf("%s looks like %s", n, other)
		}
		seen[c] = n
	}
}
