package chart

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"time"
)

// Timeline shows GPUs over time: a row each, bars for jobs. All x are percent of its width, so that it fits any screen;
// y are pixels.
type Timeline struct {
	Title, Desc   string // Desc is for screen readers
	From, Now, To time.Time
	Rows          []Row
}

// Row is a GPU.
type Row struct {
	Name, Note string // Note is what is on it now, in words
	Spans      []Span

	Y    int
	Bars []bar
}

// Span is a job on a GPU for some time.
type Span struct {
	Job, Detail string
	From, To    time.Time
	Plan        bool // it is expected, not observed
	Whole       bool // it has all of the GPU
}

// bar is a job, or several that are too short to be drawn alone.
type bar struct {
	Span
	X, W  float64 // percent
	Y, H  int     // px
	Class string
	Label string // within, "" = there is no room for it
	Small bool   // there is none on a phone
}

const (
	rowHeight = 52 // px: the name, and the bars below it
	barTop    = 18
	barHeight = 28
	roomy     = 4.0 // percent: enough for a job's number, on a phone twice as much
	maxBars   = 80  // a row
)

// Clock prints a time as the pictures do.
func Clock(t time.Time) string { return t.Local().Format("Jan 2 15:04") }

// HTML draws it.
func (t *Timeline) HTML() template.HTML {
	rows := slices.Clone(t.Rows)
	for i := range rows {
		r := &rows[i]
		r.Y, r.Bars = 20+i*rowHeight, t.bars(r.Spans)
		for k := range r.Bars {
			r.Bars[k].Y += r.Y + barTop
		}
	}
	return draw("timeline", struct {
		*Timeline
		Rows   []Row
		Ticks  []tick
		NowX   float64
		Height int
	}{t, rows, t.ticks(), t.x(t.Now), 20 + len(rows)*rowHeight})
}

func (t *Timeline) x(at time.Time) float64 {
	return 100 * max(0, min(1, float64(at.Sub(t.From))/float64(t.To.Sub(t.From))))
}

// bars lays out a GPU's jobs: jobs that hang together in time share the row's height, each in a lane.
func (t *Timeline) bars(spans []Span) []bar {
	in := slices.DeleteFunc(slices.Clone(spans), func(s Span) bool {
		return !s.To.After(t.From) || !s.From.Before(t.To) || s.To.Before(s.From)
	})
	slices.SortStableFunc(in, func(a, b Span) int { return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Job, b.Job)) })
	in = join(in, t.To.Sub(t.From))
	out := make([]bar, len(in))
	var lanes []*bar // the last bar of each
	first := 0       // of those that hang together
	for i, s := range in {
		ended := func(b *bar) bool { return !b.To.After(s.From) }
		if lanes != nil && !slices.ContainsFunc(lanes, func(b *bar) bool { return !ended(b) }) {
			t.dress(out[first:i], len(lanes))
			lanes, first = nil, i
		}
		at := slices.IndexFunc(lanes, func(b *bar) bool { return b.Job == s.Job && ended(b) })
		if at < 0 {
			at = slices.IndexFunc(lanes, ended)
		}
		if at < 0 {
			at, lanes = len(lanes), append(lanes, nil)
		}
		out[i] = bar{Span: s, X: t.x(s.From), Y: at}
		lanes[at] = &out[i]
	}
	t.dress(out[first:], len(lanes))
	return out
}

// dress gives bars that share the height of a row their size, place and colour; their Y is the lane.
func (t *Timeline) dress(bars []bar, lanes int) {
	for i := range bars {
		b := &bars[i]
		h := max(2, barHeight/lanes)
		b.Y, b.H, b.W = b.Y*h, h-1, max(0.12, t.x(b.To)-b.X) // that much is to be seen
		switch {
		case b.Plan:
			b.Class = "plan"
		case lanes > 2:
			b.Class = "three"
		case lanes > 1:
			b.Class = "two"
		case b.Whole:
			b.Class = "whole"
		default:
			b.Class = "one"
		}
		if rest := b.Plan && b.From.Equal(t.Now); b.W >= roomy && h >= 10 && !rest {
			b.Label, b.Small = b.Job, b.W < 2.5*roomy
		}
	}
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

// ticks are round times, at most seven.
func (t *Timeline) ticks() (out []tick) {
	step, day := 48*time.Hour, 24*time.Hour
	for _, s := range []int{1, 5, 10, 30, 60, 120, 240, 360, 720, 1440} { // minutes
		if s := time.Duration(s) * time.Minute; t.To.Sub(t.From)/s <= 6 {
			step = s
			break
		}
	}
	from := t.From.Local()
	midnight := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, time.Local)
	for at := midnight; !at.After(t.To); at = at.Add(step) {
		form := "15:04"
		if step >= day/2 && at.Hour() == 0 {
			form = "Jan 2"
		}
		if x := t.x(at); !at.Before(t.From) && x <= 94 {
			out = append(out, tick{x, at.Format(form)})
		}
	}
	return out
}
