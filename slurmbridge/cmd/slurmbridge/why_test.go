package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// TestPrintWhy: what an owner reads of a job that waits, and of its runs.
func TestPrintWhy(t *testing.T) {
	at := time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC)
	outcome := func(o history.Outcome) history.Outcome {
		o.Node, o.Start, o.End = "n1", at, at.Add(2*time.Minute)
		return o
	}
	var out bytes.Buffer
	s := &shared{cli.Env{Out: &out}}
	s.printWhy("7", &journal.Story{
		Note: &job.Explanation{At: at, Ref: "7", App: "lmp", Known: true, Preallocates: true, FreeInS: 90, LatestDelayS: 300, Ignored: []string{`share:max-slowdown="x": why`}},
		Outcomes: []history.Outcome{
			outcome(history.Outcome{State: "COMPLETED", With: []string{"8"}, Slowdown: 1.2, Predicted: 1.05, Contract: 1.1, Broken: true}),
			outcome(history.Outcome{State: "COMPLETED", With: []string{"9"}, Slowdown: 1.05, Contract: 1.1}),
			outcome(history.Outcome{State: "FAILED", With: []string{"8", "9"}, Suspect: "GPU memory was nearly full", Again: true}),
			outcome(history.Outcome{State: "FAILED", Cleared: true}),
			outcome(history.Outcome{Learned: true, Slowdown: 1}),
			outcome(history.Outcome{State: "TIMEOUT", With: []string{"8"}, Suspect: "it ran out of its time limit of 1m30s", LentS: 60, HeldS: 5, PlainEnd: at}),
		},
	})
	for _, want := range []string{
		"expected to be empty in 1m30s",
		"it takes most of the card's memory at its start",
		`ignored share:max-slowdown="x": why`,
		"completed after 2m0s on n1, sharing with 8: 1.20 times its time alone, 1.05 predicted; its contract of 1.10 was broken\n",
		"sharing with 9: 1.05 times its time alone; its contract of 1.10 was kept\n",
		"failed after 2m0s on n1, sharing with 8, 9\n  sharing may be the reason: GPU memory was nearly full; it was run again, alone\n",
		"failed after 2m0s on n1, alone\n  it failed alone, too",
		"timeout after 2m0s on n1, sharing with 8\n  sharing may be the reason: it ran out of its time limit of 1m30s\n  its time limit was raised by 1m0s",
		"  the bridge kept it waiting 5s longer than it may\n  plain Slurm would have ended it at ",
		"  worse off than on plain Slurm: timeout\n  worse off than on plain Slurm: held\n",
		"ended after 2m0s on n1, alone: 1.00 times its time alone\n  the run became part",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said in\n%s", want, out.String())
		}
	}
}
