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

	pieces []piece // of the time from From to To; none = it is one
}

// piece is a part of the time, as offsets from its beginning, drawn over W percent of the width from X on.
type piece struct {
	from, to time.Duration
	X, W     float64
	Folded   string // "" = it isn't, else what it holds in words: nothing
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
	letter    = 0.6 // percent: enough for a letter of a label, on a phone 2.5 times as much
	foldWidth = 2.5 // percent, of a time that is folded
	maxBars   = 80  // a row
)

// Clock prints a time as the pictures do.
func Clock(t time.Time) string { return t.Local().Format("Jan 2 15:04") }

// HTML draws it.
func (t *Timeline) HTML() template.HTML {
	t.pieces = t.fold()
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
		Pieces []piece
		NowX   float64
		Height int
	}{t, rows, t.ticks(), t.pieces, t.x(t.Now), t.height()})
}

func (t *Timeline) height() int { return 20 + len(t.Rows)*rowHeight }

// File draws it as a file of its own, width px wide, with a line of text below.
func (t *Timeline) File(width int, below string) []byte {
	height := t.height()
	return []byte(draw("file", struct {
		Width, Inner, Height, Below int
		Text                        string
		CSS                         template.CSS
		Picture                     template.HTML
	}{width, width - 32, height + 48, height + 34, below, template.CSS(CSS), t.HTML()}) + "\n") //nolint:gosec // our own
}

// fold divides the time into pieces: each stretch without bars that is longer than half of the time with bars, and than
// a twentieth of all, is folded.
func (t *Timeline) fold() (out []piece) {
	all, now := t.To.Sub(t.From), t.Now.Sub(t.From)
	busy := []piece{{from: now, to: now}, {from: all, to: all}}
	for _, r := range t.Rows {
		for _, s := range r.Spans {
			if from, to := max(0, s.From.Sub(t.From)), min(all, s.To.Sub(t.From)); from < to {
				busy = append(busy, piece{from: from, to: to})
			}
		}
	}
	slices.SortFunc(busy, func(a, b piece) int { return cmp.Compare(a.from, b.from) })
	var gaps []piece
	var until, idle, folded time.Duration
	for _, b := range busy {
		if b.from > until {
			gaps, idle = append(gaps, piece{from: until, to: b.from}), idle+b.from-until
		}
		until = max(until, b.to)
	}
	gaps = slices.DeleteFunc(gaps, func(g piece) bool {
		short := g.to-g.from <= max((all-idle)/2, all/20) || idle == all
		if !short {
			folded += g.to - g.from
		}
		return short
	})
	scale := (100 - foldWidth*float64(len(gaps))) / max(1, float64(all-folded))
	x, from := 0.0, time.Duration(0)
	for _, g := range append(gaps, piece{from: all, to: all}) {
		w := scale * float64(g.from-from)
		out = append(out, piece{from: from, to: g.from, X: x, W: w})
		if x += w; g.to > g.from {
			text := "no job from " + Clock(t.From.Add(g.from)) + " to " + Clock(t.From.Add(g.to))
			out = append(out, piece{from: g.from, to: g.to, X: x, W: foldWidth, Folded: text})
			x += foldWidth
		}
		from = g.to
	}
	return slices.DeleteFunc(out, func(p piece) bool { return p.to == p.from })
}

func (t *Timeline) x(at time.Time) float64 {
	p, d := piece{to: t.To.Sub(t.From), W: 100}, at.Sub(t.From)
	for _, q := range t.pieces {
		if p = q; d < q.to {
			break
		}
	}
	return p.X + p.W*max(0, min(1, float64(d-p.from)/float64(p.to-p.from)))
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
		roomy := letter * float64(len(b.Job)+1)
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

// ticks are round times, at most seven, and none in what is folded. The first of another day names its day.
func (t *Timeline) ticks() (out []tick) {
	open := t.To.Sub(t.From)
	for _, p := range t.pieces {
		if p.Folded != "" {
			open -= p.to - p.from
		}
	}
	step, day := 48*time.Hour, 24*time.Hour
	for _, s := range []int{5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400} { // seconds
		if s := time.Duration(s) * time.Second; open/s <= 6 {
			step = s
			break
		}
	}
	from := t.From.Local()
	midnight := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, time.Local)
	last, room, today := -100.0, 94.0, from.YearDay()
	if step < time.Minute {
		room = 80
	}
	for at := midnight; !at.After(t.To); at = at.Add(step) {
		x := t.x(at)
		if at.Before(t.From) || x > room || x < last+7 || slices.ContainsFunc(t.pieces, func(p piece) bool {
			d := at.Sub(t.From)
			return p.Folded != "" && d > p.from && d < p.to
		}) {
			continue
		}
		form := "15:04"
		switch {
		case step >= day/2 && at.Hour() == 0:
			form = "Jan 2"
		case step < time.Minute:
			form = "15:04:05"
		case at.YearDay() != today && len(t.pieces) > 1:
			form = "Jan 2 15:04"
		}
		last, today = x, at.YearDay()
		out = append(out, tick{x, at.Format(form)})
	}
	return out
}
