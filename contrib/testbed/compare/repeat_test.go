package main

import (
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

func seconds(t *testing.T, app string) float64 {
	t.Helper()
	p, ok := apps.ByName(app)
	if !ok {
		t.Fatal(app)
	}
	return p.DurationS
}

// Jobs one after the other: the pauses are gone, the order stays.
func TestRepeatAlone(t *testing.T) {
	a, b := seconds(t, "vgg16"), seconds(t, "gromacs")
	runs := []run{
		{app: "vgg16", startS: 10, endS: 10 + a, finished: true},
		{app: "gromacs", startS: 30 + a, endS: 30 + a + b, finished: true},
	}
	got, err := repeat(runs, false)
	if err != nil || math.Abs(got-a-b) > 1e-6 {
		t.Errorf("%v, %v; want %v", got, err, a+b)
	}
	got, err = repeatStarts(runs)
	if err != nil || math.Abs(got-30-a-b) > 1e-6 {
		t.Errorf("with its starts %v, %v; want %v", got, err, 30+a+b)
	}
}

// Two that start a moment apart are one decision; the third waited for both, the
// fourth joined it as the third's partner ended.
func TestRepeatGroups(t *testing.T) {
	const pause = 7
	starts := func(delay float64) []run {
		// By hand: alexnet and gromacs stay below what the card can do together, and
		// below it the law slows next to nothing.
		a, g := seconds(t, "alexnet"), seconds(t, "gromacs")
		return []run{
			{app: "alexnet", startS: delay, endS: a + delay + 1},
			{app: "gromacs", startS: delay + 0.1, endS: g + delay + 1},
			{app: "alexnet", startS: g + 2*delay + 1, endS: g + a + 2*delay + 2},
			{app: "gromacs", startS: g + 2*delay + 1.1, endS: 2*g + 2*delay + 2},
			{app: "alexnet", startS: g + a + 3*delay + 2, endS: g + 2*a + 3*delay + 3},
		}
	}
	paused, err := repeat(starts(pause), false)
	if err != nil {
		t.Fatal(err)
	}
	swift, err := repeat(starts(0), false)
	if err != nil || paused != swift {
		t.Errorf("pauses count: %v, without %v (%v)", paused, swift, err)
	}
	g, a := seconds(t, "gromacs"), seconds(t, "alexnet")
	if least := g + 2*a; paused < least || paused > 1.1*least {
		t.Errorf("%v s, alone the longest chain takes %v s", paused, least)
	}
}

// What can't run is reported, not made up.
func TestRepeatFails(t *testing.T) {
	if _, err := repeat([]run{{app: "none"}}, false); err == nil {
		t.Error("an application that isn't there")
	}
	// Two that don't fit together: with memory to spare the decision can be repeated,
	// the starts can't.
	f := figures{runs: []run{{app: "vgg16", endS: 50}, {app: "vgg16", endS: 50}}, MakespanS: 100}
	f.addSim()
	if alone := seconds(t, "vgg16"); f.SimNote == "" || f.SimMakespanS < 1.5*alone || f.SimMakespanS > 2*alone || f.SimRatio != 100/f.SimMakespanS || f.SimStartsS != 0 {
		t.Errorf("two that don't fit together: %+v", f)
	}
	f = figures{runs: []run{{app: "gromacs", endS: 83}}, JobsFailed: 1}
	if f.addSim(); f.SimMakespanS != 0 || f.SimNote != "" {
		t.Errorf("failed jobs are no decisions to repeat: %+v", f)
	}
}
