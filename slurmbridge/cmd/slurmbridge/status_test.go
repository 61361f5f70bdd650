package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// printed is what status prints of a report.
func printed(r *httpapi.Report) string {
	var out bytes.Buffer
	(&shared{cli.Env{Out: &out, ErrOut: &out}}).printStatus(r)
	return out.String()
}

// A job that only keeps its turn is on no GPU yet.
func TestStatusOfAJobInItsTurn(t *testing.T) {
	members := func(ref string) []job.Member { return []job.Member{{Ref: ref, State: job.MemberWaiting}} }
	out := printed(&httpapi.Report{Status: job.Status{At: time.Now(), Mode: job.Active, Gate: "3", Groups: []job.Group{
		{ID: 8, Kind: job.Turn, State: job.Released, Members: members("8")},
		{ID: 9, Kind: job.StartNow, State: job.Released, Node: "n1", GPU: 2, Members: members("9")},
	}}})
	for _, want := range []string{"about to start: 8 in its turn\n", "about to start: 9 on n1 gpu 2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q doesn't say %q", out, want)
		}
	}
}

// Before a poll has succeeded there is nothing to say but why.
func TestStatusBeforeTheFirstPoll(t *testing.T) {
	out := printed(&httpapi.Report{Status: job.Status{Err: "slurmctld is down"}})
	must.Equal(t, out, "no poll has succeeded yet: slurmctld is down\n")
}

// Status counts the jobs whose applications are seen no second time, and says what to do about it.
func TestStatusOfApplicationsSeenOnce(t *testing.T) {
	says := func(seen history.Seen) string {
		return printed(&httpapi.Report{Status: job.Status{At: time.Now(), Mode: job.Active, Gate: "3"}, Seen: &seen})
	}
	out := says(history.Seen{Jobs: 40, Once: 37})
	if !strings.Contains(out,
		"in the last day 37 jobs of 40 ran an application that was seen no second time; slurmbridge profiles identify") {
		t.Error(out)
	}
	for _, few := range []history.Seen{{Jobs: 40}, {Jobs: 7, Once: 7}, {Jobs: 100, Once: 20}} {
		if out := says(few); strings.Contains(out, "second time") {
			t.Error(out)
		}
	}
}

// Why begins with a sentence for the job's owner, and details are for who asks for them.
func TestWhyBeginsWithASentence(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)
	note := func(considered ...job.Considered) *job.Explanation {
		e := &job.Explanation{
			At: at, Ref: "7", App: "lmp", Known: true, PlainEnd: at, ExpectedEnd: at,
			Considered: considered,
		}
		for _, r := range []rlcore.Refusal{rlcore.RefusedMemory, rlcore.RefusedContract, rlcore.RefusedMemory} {
			e.Refused = append(e.Refused, job.Refusal{Node: "n1", Reason: r})
		}
		e.Status = e.Waits()
		return e
	}
	group := func(m ...job.Member) []job.Group {
		return []job.Group{{State: job.Released, Node: "n1", GPU: 2, Members: m}}
	}
	waits := job.QueuePosition{Position: 3, Of: 9, Window: 12, ExpectedStart: at, Gate: "3"}
	behind, held, own := waits, job.QueuePosition{Holds: "its begin time"},
		job.QueuePosition{NotAdopted: "it has a deadline"}
	behind.Position = 14
	for want, story := range map[string]journal.Story{
		"Job 7 waits for a GPU: those in use lack memory for it. It should start by 2026-01-02 12:00:00.\n": {
			Waits: &waits, Note: note(),
			Outcomes: []history.Told{{Outcome: history.Outcome{Ref: "7", State: "FAILED", Node: "n1", Start: at, End: at}}},
		},
		"Job 7 waits for a GPU: other jobs come first. It": {
			Waits: &waits,
			Note:  note(job.Considered{Jobs: []string{"7"}}),
		},
		"Job 7 waits for its turn: 13 jobs are ahead of it. It should":       {Waits: &behind},
		"Job 7 waits for its begin time, as it would without slurmbridge.\n": {Waits: &held},
		"Job 7 is left as it is: it has a deadline.\n":                       {Waits: &own},
		"Job 7 waits for a decision. It should":                              {Waits: &waits},
		"Job 7 runs on n1 gpu 2 together with 8, and should take 1.20 times as long as alone.\n": {
			Note: note(), On: &job.Place{Node: "n1", GPUs: []int{2}, With: []string{"8"}},
			Groups: group(job.Member{Ref: "7", State: job.MemberRunning, Predicted: 1.2},
				job.Member{Ref: "8", State: job.MemberRunning}),
		},
		"Job 7 starts on n1 gpu 2.\n": {Groups: group(job.Member{Ref: "7", State: job.MemberWaiting})},
		"Job 7 waits for its turn in Slurm's queue, like a job of a whole GPU.\n  left to Slurm: it has a deadline\n": {
			Unmanaged: "it has a deadline",
		},
		"Job 7 was left alone at 2026-01-02 12:00:00, after restore 7\n": {Changes: []journal.Entry{{
			At:     at,
			Change: "restore 7",
		}}},
		"Job 7 runs on n1, alone.\n": {On: &job.Place{Node: "n1", GPUs: []int{0, 1}}},
		"job 7 completed after 0s on n1": {
			Note:     note(),
			Outcomes: []history.Told{{Outcome: history.Outcome{Ref: "7", State: "COMPLETED", Node: "n1", Start: at, End: at}}},
		},
	} {
		var short, long bytes.Buffer
		(&shared{cli.Env{Out: &short}}).printWhy("7", &story, false)
		if !strings.HasPrefix(short.String(), want) || strings.Contains(short.String(), "refused") ||
			strings.Contains(short.String(), "gate") {
			t.Errorf("want %q, got %q", want, short.String())
		}
		(&shared{cli.Env{Out: &long}}).printWhy("7", &story, true)
		if story.Note != nil && !strings.Contains(long.String(), "refused alone or joining on n1 gpu 0: GPU memory") {
			t.Errorf("at length: %q", long.String())
		}
	}
}
