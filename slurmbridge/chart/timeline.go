package chart

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"time"
)

// Timeline shows GPUs over time: a row for each GPU, a bar for each job. All x are in percent of the width, so it fits
// any screen; all y are in pixels. Long periods without a bar in any row are folded.
type Timeline struct {
	Title, Desc   string // Desc is for screen readers
	From, Now, To time.Time
	Rows          []Row

	folds []fold
}

// Row is a GPU.
type Row struct {
	Name, Note string // Note says what runs on it now
	Spans      []Span
}

// Span is a job on a GPU for some time.
type Span struct {
	Job, Detail string
	From, To    time.Time
	Plan        bool // expected, not observed
	Whole       bool // the job has the whole GPU
}

// fold is a period without bars, drawn foldWidth wide at X.
type fold struct {
	from, to time.Time
	X        float64
	Text     string
}

// bar is a job, or several jobs that are too short to draw.
type bar struct {
	Span
	X, W  float64 // percent
	Y, H  int     // px, below the row's name
	Class string
	Label string // in the bar, "" = it doesn't fit
	Small bool   // the label doesn't fit on a phone
}

const (
	rowHeight = 52 // px: the name, and the bars below it
	barHeight = 28
	letter    = 0.6 // percent, of a letter in a label; on a phone a letter takes 2.5 times as much
	foldWidth = 2.5 // percent
	maxBars   = 80  // in a row
)

// Clock prints a time as the charts do.
func Clock(t time.Time) string { return t.Local().Format("Jan 2 15:04") }

// drawnRow is a row with its layout. The bars begin at Top.
type drawnRow struct {
	Row
	Y, Top int
	Bars   []bar
}

// HTML draws the timeline.
func (t *Timeline) HTML() template.HTML {
	t.fold()
	var rows []drawnRow
	for i, r := range t.Rows {
		y := 20 + i*rowHeight
		rows = append(rows, drawnRow{r, y, y + 18, t.bars(r.Spans)})
	}
	return draw("timeline", struct {
		*Timeline
		Rows          []drawnRow
		Ticks         []tick
		Folds         []fold
		FoldW, NowX   float64
		Height, Thick int
	}{t, rows, t.ticks(), t.folds, foldWidth, t.x(t.Now), t.height(), barHeight})
}

func (t *Timeline) height() int { return 20 + len(t.Rows)*rowHeight }

// File draws the timeline as an SVG file, width px wide, with a line of text below.
func (t *Timeline) File(width int, below string) []byte {
	return []byte(draw("file", struct {
		Width, Height int
		Text          string
		Picture       template.HTML
	}{width, t.height() + 48, below, t.HTML()}) + "\n")
}

// visible returns the spans within the timeline's period, sorted by start.
func (t *Timeline) visible(spans []Span) []Span {
	out := slices.DeleteFunc(slices.Clone(spans), func(s Span) bool {
		return !s.To.After(t.From) || !s.From.Before(t.To) || s.To.Before(s.From)
	})
	slices.SortStableFunc(out, func(a, b Span) int { return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Job, b.Job)) })
	return out
}

// fold finds the periods without bars that are longer than a fifth of the timeline.
func (t *Timeline) fold() {
	t.folds = nil
	var busy []Span
	for _, r := range t.Rows {
		busy = append(busy, r.Spans...)
	}
	busy = t.visible(busy)
	if len(busy) == 0 {
		return
	}
	until := t.From
	for _, s := range append(busy, Span{From: t.To, To: t.To}) {
		if s.From.Sub(until) > t.To.Sub(t.From)/5 {
			text := "no job from " + Clock(until) + " to " + Clock(s.From)
			t.folds = append(t.folds, fold{from: until, to: s.From, Text: text})
		}
		if s.To.After(until) {
			until = s.To
		}
	}
	for i := range t.folds {
		t.folds[i].X = t.x(t.folds[i].from)
	}
}

// unfolded is the time outside of folds, at least a second.
func (t *Timeline) unfolded() time.Duration {
	d := t.To.Sub(t.From)
	for _, f := range t.folds {
		d -= f.to.Sub(f.from)
	}
	return max(d, time.Second)
}

func (t *Timeline) x(at time.Time) float64 {
	scale := (100 - foldWidth*float64(len(t.folds))) / float64(t.unfolded())
	x := scale * float64(at.Sub(t.From))
	for _, f := range t.folds {
		all := float64(f.to.Sub(f.from))
		x -= max(0, min(1, float64(at.Sub(f.from))/all)) * (scale*all - foldWidth)
	}
	return max(0, min(100, x))
}

// bars lays out a GPU's jobs. Jobs in a chain of overlaps share the row's height.
func (t *Timeline) bars(spans []Span) (out []bar) {
	in := mergeShort(t.visible(spans), t.To.Sub(t.From))
	for len(in) > 0 {
		n := 1
		for until := in[0].To; n < len(in) && in[n].From.Before(until); n++ {
			if in[n].To.After(until) {
				until = in[n].To
			}
		}
		out = append(out, t.lanes(in[:n])...)
		in = in[n:]
	}
	return out
}

// lanes lays out jobs in lanes, so overlapping jobs are drawn next to each other.
func (t *Timeline) lanes(in []Span) []bar {
	out := make([]bar, len(in))
	var lanes []Span // the last span of each
	for i, s := range in {
		ended := func(l Span) bool { return !l.To.After(s.From) }
		at := slices.IndexFunc(lanes, func(l Span) bool { return l.Job == s.Job && ended(l) })
		if at < 0 {
			at = slices.IndexFunc(lanes, ended)
		}
		if at < 0 {
			at = len(lanes)
			lanes = append(lanes, s)
		}
		lanes[at] = s
		out[i] = bar{Span: s, X: t.x(s.From), Y: at}
	}
	h := max(2, barHeight/len(lanes))
	for i := range out {
		b := &out[i]
		b.Y *= h
		b.H = h - 1
		b.W = max(0.12, t.x(b.To)-b.X) // the narrowest visible bar
		switch {
		case b.Plan:
			b.Class = "plan"
		case len(lanes) > 1:
			b.Class = map[bool]string{true: "two", false: "three"}[len(lanes) == 2]
		default:
			b.Class = map[bool]string{true: "whole", false: "one"}[b.Whole]
		}
		labelWidth := letter * float64(len(b.Job)+1)
		continues := b.Plan && b.From.Equal(t.Now) // the job's observed bar has the label
		if b.W >= labelWidth && h >= 10 && !continues {
			b.Label = b.Job
			b.Small = b.W < 2.5*labelWidth
		}
	}
	return out
}

// mergeShort merges neighbouring spans that are too short to see, then longer ones, until at most maxBars are left.
func mergeShort(in []Span, window time.Duration) []Span {
	for gap := window / 400; ; gap *= 2 {
		var out []Span
		n := 0 // short spans in the last of out
		for _, s := range in {
			tiny := s.To.Sub(s.From) < gap && !s.Plan
			if k := len(out) - 1; tiny && n > 0 && s.From.Sub(out[k].To) < gap {
				n++
				if s.To.After(out[k].To) {
					out[k].To = s.To
				}
				out[k].Job = ""
				out[k].Detail = fmt.Sprintf("%d short jobs, %s–%s", n, Clock(out[k].From), Clock(out[k].To))
				continue
			}
			out = append(out, s)
			n = 0
			if tiny {
				n = 1
			}
		}
		if len(out) <= maxBars || gap > window {
			return out
		}
	}
}

// ticks returns at most seven round times, none within a fold. The first tick of a day names the day.
func (t *Timeline) ticks() (out []tick) {
	const day = 24 * time.Hour
	step := 2 * day
	for _, s := range []int{5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400} { // seconds
		if s := time.Duration(s) * time.Second; t.unfolded()/s <= 6 {
			step = s
			break
		}
	}
	from := t.From.Local()
	last := -100.0 // the place of the last tick
	today := from.YearDay()
	rightmost := 94.0
	if step < time.Minute {
		rightmost = 80
	}
	midnight := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, time.Local)
	for at := midnight; !at.After(t.To); at = at.Add(step) {
		x := t.x(at)
		folded := func(f fold) bool { return at.After(f.from) && at.Before(f.to) }
		if at.Before(t.From) || x > rightmost || x < last+7 || slices.ContainsFunc(t.folds, folded) {
			continue
		}
		form := "15:04"
		switch {
		case step >= day/2 && at.Hour() == 0:
			form = "Jan 2"
		case step < time.Minute:
			form = "15:04:05"
		case at.YearDay() != today:
			form = "Jan 2 15:04"
		}
		last = x
		today = at.YearDay()
		out = append(out, tick{x, at.Format(form)})
	}
	return out
}
