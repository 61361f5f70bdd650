package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"

	"github.com/google/go-cmp/cmp"
)

const hostile = `</svg><script>alert(1)</script>"'&` + "\x00"

// wellFormed fails the test where the picture isn't XML of its own.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "script" {
			t.Fatalf("a script in %s", svg)
		}
	}
}

func TestTextsOfUsersInPictures(t *testing.T) {
	wellFormed(t, string(Slowdowns([]Point{{1.5, 1.2, hostile, true}})))
	l := &Timeline{Title: hostile, Desc: hostile, Now: at(80), From: at(0), To: at(100), Rows: []Row{{
		Name: hostile, Note: hostile, Spans: []Span{{Job: hostile, Detail: hostile, From: at(0), To: at(40)}},
	}}}
	wellFormed(t, string(l.HTML()))
}

func TestSlowdowns(t *testing.T) {
	got := string(Slowdowns([]Point{{1, 1, "", false}, {1.5, 2, "worst", true}}))
	for _, want := range []string{`cx="0" cy="300"`, `cx="150" cy="0"`, `dot bad`, `<title>worst</title>`, `>1.5</text>`} {
		must.Contain(t, got, want)
	}
}

func at(minute int) time.Time {
	return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(minute) * time.Minute)
}

// Thousands of jobs of seconds on one GPU are still one small row.
func TestManyShortJobs(t *testing.T) {
	var in []Span
	for i := range 20_000 {
		from := at(0).Add(time.Duration(i) * time.Second)
		in = append(in, Span{Job: fmt.Sprint(i), From: from, To: from.Add(900 * time.Millisecond)})
	}
	l := Timeline{From: at(0), Now: at(0).Add(20_000 * time.Second), To: at(0).Add(25_000 * time.Second)}
	got := l.bars(in)
	if len(got) == 0 || len(got) > maxBars {
		t.Fatalf("%d bars", len(got))
	}
	last := got[len(got)-1]
	if end := last.X + last.W; got[0].X != 0 || end < 79.9 || end > 80.3 {
		t.Errorf("from %v to %v percent", got[0].X, end)
	}
}

// Jobs beside each other are drawn so, and none covers another.
func TestNoBarCoversAnother(t *testing.T) {
	l := Timeline{From: at(0), Now: at(80), To: at(100)}
	got := l.bars([]Span{
		{Job: "a", From: at(0), To: at(40)},
		{Job: "b", From: at(0), To: at(20)},
		{Job: "c", From: at(20), To: at(60)},
		{Job: "d", From: at(60), To: at(80), Whole: true},
		{Job: "d", From: at(80), To: at(90), Plan: true},
		{Job: "out of sight", From: at(-20), To: at(0)},
	})
	for i := range got {
		got[i].Span = Span{}
	}
	want := []bar{
		{Label: "a", Class: "two", X: 0, W: 40, Y: 0, H: 13},
		{Label: "b", Class: "two", X: 0, W: 20, Y: 14, H: 13},
		{Label: "c", Class: "two", X: 20, W: 40, Y: 14, H: 13},
		{Label: "d", Class: "whole", X: 60, W: 20, Y: 0, H: 27},
		{Label: "", Class: "plan", X: 80, W: 10, Y: 0, H: 27},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(bar{})); diff != "" {
		t.Error(diff)
	}
}

// Times in which no GPU had a job are folded, so that the jobs are to be seen; the axis has no mark there, and names
// the day behind a night.
func TestGapsAreFolded(t *testing.T) {
	span := func(from, to int) Span { return Span{Job: "7", From: at(from), To: at(to)} }
	l := Timeline{From: at(0), Now: at(1442), To: at(1444), Rows: []Row{
		{Spans: []Span{span(0, 4), span(1440, 1442)}}, {Spans: []Span{span(2, 8)}},
	}}
	if l.fold(); len(l.folds) != 1 || fmt.Sprintf("%.1f+%.1f", l.folds[0].X, l.x(at(1440))-l.folds[0].X) != "65.0+2.5" {
		t.Errorf("%+v", l.folds)
	}
	if x := []float64{l.x(at(4)), l.x(at(700)), l.x(at(1442))}; math.Abs(x[0]-32.5) > 0.1 || x[1] < 65 || x[1] > 67.5 ||
		math.Abs(x[2]-83.75) > 0.1 {
		t.Errorf("places %v", x)
	}
	days := 0
	for _, tick := range l.ticks() {
		if tick.At > 65.01 && tick.At < 67.49 {
			t.Errorf("a mark in the fold: %v", tick)
		}
		if strings.Contains(tick.Text, "Jan") {
			days++
		}
	}
	must.Equal(t, days, 1, "marks that name a day: %v", l.ticks())
	// Short gaps stay, and so does all of a time without a job.
	for _, spans := range [][]Span{{span(0, 700), span(800, 1440)}, nil} {
		l.Rows = []Row{{Spans: spans}}
		if l.fold(); len(l.folds) != 0 {
			t.Errorf("%v: %+v", spans, l.folds)
		}
	}
	wellFormed(t, string(l.File(1000, hostile)))
}

// An axis of a minute has seconds.
func TestAxisOfAMinute(t *testing.T) {
	l := Timeline{From: at(0), Now: at(1), To: at(1)}
	got := l.ticks()
	if len(got) < 4 || !strings.HasSuffix(got[0].Text, ":10") {
		t.Errorf("%v", got)
	}
}

// Jobs that failed at once have no length in Slurm's whole seconds; where they were all that ran one is drawn all the
// same.
func TestJobsThatTookNoTime(t *testing.T) {
	l := &Timeline{Now: at(100), From: at(0), To: at(110), Rows: []Row{{Spans: []Span{{Job: "a", From: at(50), To: at(50)}}}}}
	got := string(l.HTML())
	wellFormed(t, got)
	if strings.Contains(got, "NaN") || strings.Contains(got, "Inf") || strings.Count(got, `class="fold"`) != 2 {
		t.Error(got)
	}
}
