package chart

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"time"
)

// Timeline shows GPUs over time: a row each, bars for jobs. All x are percent of its width, so that it fits any screen;
// y are pixels. Long times in which no row has a bar are folded.
type Timeline struct {
	Title, Desc   string // Desc is for screen readers
	From, Now, To time.Time
	Rows          []Row

	folds []fold
}

// Row is a GPU.
type Row struct {
	Name, Note string // Note is what is on it now, in words
	Spans      []Span
}

// Span is a job on a GPU for some time.
type Span struct {
	Job, Detail string
	From, To    time.Time
	Plan        bool // it is expected, not observed
	Whole       bool // it has all of the GPU
}

// fold is a time without bars that is drawn narrow: over foldWidth percent of the width from X on.
type fold struct {
	from, to time.Time
	X        float64
	Text     string
}

// bar is a job, or several that are too short to be drawn alone.
type bar struct {
	Span
	X, W  float64 // percent
	Y, H  int     // px, below the row's name
	Class string
	Label string // within, "" = there is no room for it
	Small bool   // there is none on a phone
}

const (
	rowHeight = 52 // px: the name, and the bars below it
	barHeight = 28
	letter    = 0.6 // percent: enough for a letter of a label, on a phone 2.5 times as much
	foldWidth = 2.5 // percent, of a time that is folded
	maxBars   = 80  // a row
)

// Clock prints a time as the pictures do.
func Clock(t time.Time) string { return t.Local().Format("Jan 2 15:04") }

// drawnRow is a row as it is drawn, its bars from Top px on.
type drawnRow struct {
	Row
	Y, Top int
	Bars   []bar
}

// HTML draws it.
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

// File draws it as a file of its own, width px wide, with a line of text below.
func (t *Timeline) File(width int, below string) []byte {
	return []byte(draw("file", struct {
		Width, Height int
		Text          string
		Picture       template.HTML
	}{width, t.height() + 48, below, t.HTML()}) + "\n")
}

// shown are the spans in sight, in their order.
func (t *Timeline) shown(spans []Span) []Span {
	out := slices.DeleteFunc(slices.Clone(spans), func(s Span) bool {
		return !s.To.After(t.From) || !s.From.Before(t.To) || s.To.Before(s.From)
	})
	slices.SortStableFunc(out, func(a, b Span) int { return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Job, b.Job)) })
	return out
}

// fold finds the times without bars that are longer than a fifth of all.
func (t *Timeline) fold() {
	t.folds = nil
	var busy []Span
	for _, r := range t.Rows {
		busy = append(busy, r.Spans...)
	}
	if busy = t.shown(busy); len(busy) == 0 {
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

// open is the time that isn't folded: some, even where a job that took no time was all that ran.
func (t *Timeline) open() time.Duration {
	open := t.To.Sub(t.From)
	for _, f := range t.folds {
		open -= f.to.Sub(f.from)
	}
	return max(open, time.Second)
}

// x is where a time is drawn.
func (t *Timeline) x(at time.Time) float64 {
	scale := (100 - foldWidth*float64(len(t.folds))) / float64(t.open())
	x := scale * float64(at.Sub(t.From))
	for _, f := range t.folds {
		all := float64(f.to.Sub(f.from))
		x -= max(0, min(1, float64(at.Sub(f.from))/all)) * (scale*all - foldWidth)
	}
	return max(0, min(100, x))
}

// bars lays out a GPU's jobs: jobs that hang together in time share the row's height.
func (t *Timeline) bars(spans []Span) (out []bar) {
	in := join(t.shown(spans), t.To.Sub(t.From))
	for n := 0; len(in) > 0; in, n = in[n:], 0 {
		for until := in[0].To; n < len(in) && (n == 0 || in[n].From.Before(until)); n++ {
			if in[n].To.After(until) {
				until = in[n].To
			}
		}
		out = append(out, t.side(in[:n])...)
	}
	return out
}

// side lays out jobs beside each other, each in a lane.
func (t *Timeline) side(in []Span) []bar {
	out := make([]bar, len(in))
	var lanes []Span // the last of each
	for i, s := range in {
		ended := func(l Span) bool { return !l.To.After(s.From) }
		at := slices.IndexFunc(lanes, func(l Span) bool { return l.Job == s.Job && ended(l) })
		if at < 0 {
			at = slices.IndexFunc(lanes, ended)
		}
		if at < 0 {
			at, lanes = len(lanes), append(lanes, s)
		}
		out[i], lanes[at] = bar{Span: s, X: t.x(s.From), Y: at}, s
	}
	h := max(2, barHeight/len(lanes))
	for i := range out {
		b := &out[i]
		b.Y, b.H, b.W = b.Y*h, h-1, max(0.12, t.x(b.To)-b.X) // that much is to be seen
		switch {
		case b.Plan:
			b.Class = "plan"
		case len(lanes) > 1:
			b.Class = map[bool]string{true: "two", false: "three"}[len(lanes) == 2]
		default:
			b.Class = map[bool]string{true: "whole", false: "one"}[b.Whole]
		}
		roomy := letter * float64(len(b.Job)+1)
		if rest := b.Plan && b.From.Equal(t.Now); b.W >= roomy && h >= 10 && !rest {
			b.Label, b.Small = b.Job, b.W < 2.5*roomy
		}
	}
	return out
}

// join lets one span stand for neighbours that are too short to be told apart, then for longer ones, until a row is
// small enough to send.
func join(in []Span, window time.Duration) []Span {
	for gap := window / 400; ; gap *= 2 {
		var out []Span
		n := 0 // short ones that the last of out stands for
		for _, s := range in {
			tiny := s.To.Sub(s.From) < gap && !s.Plan
			if k := len(out) - 1; tiny && n > 0 && s.From.Sub(out[k].To) < gap {
				n++
				if s.To.After(out[k].To) {
					out[k].To = s.To
				}
				out[k].Job, out[k].Detail = "", fmt.Sprintf("%d short jobs, %s–%s", n, Clock(out[k].From), Clock(out[k].To))
				continue
			}
			out, n = append(out, s), 0
			if tiny {
				n = 1
			}
		}
		if len(out) <= maxBars || gap > window {
			return out
		}
	}
}

// ticks are round times, at most seven, and none in what is folded. The first of another day names its day.
func (t *Timeline) ticks() (out []tick) {
	const day = 24 * time.Hour
	step := 2 * day
	for _, s := range []int{5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400} { // seconds
		if s := time.Duration(s) * time.Second; t.open()/s <= 6 {
			step = s
			break
		}
	}
	from := t.From.Local()
	last, room, today := -100.0, 94.0, from.YearDay()
	if step < time.Minute {
		room = 80
	}
	midnight := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, time.Local)
	for at := midnight; !at.After(t.To); at = at.Add(step) {
		x := t.x(at)
		folded := func(f fold) bool { return at.After(f.from) && at.Before(f.to) }
		if at.Before(t.From) || x > room || x < last+7 || slices.ContainsFunc(t.folds, folded) {
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
		last, today = x, at.YearDay()
		out = append(out, tick{x, at.Format(form)})
	}
	return out
}
