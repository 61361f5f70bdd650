package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
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
	out := printed(&httpapi.Report{At: time.Now(), Mode: "active", Gate: "3", Groups: []job.Group{
		{ID: 8, Kind: job.Turn, State: job.Released, Members: members("8")},
		{ID: 9, Kind: job.StartNow, State: job.Released, Node: "n1", GPU: 2, Members: members("9")},
	}})
	for _, want := range []string{"group 8: 8 in its turn\n", "group 9: 9 on n1 gpu 2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q doesn't say %q", out, want)
		}
	}
}

// Before a poll has succeeded there is nothing to say but why.
func TestStatusBeforeTheFirstPoll(t *testing.T) {
	if out := printed(&httpapi.Report{Error: "slurmctld is down"}); out != "no poll has succeeded yet: slurmctld is down\n" {
		t.Error(out)
	}
}

// Status counts the jobs whose applications are seen no second time, and says what to do about it.
func TestStatusOfApplicationsSeenOnce(t *testing.T) {
	out := printed(&httpapi.Report{At: time.Now(), Mode: "active", Gate: "3", Seen: &history.Seen{Jobs: 40, Once: 37}})
	if !strings.Contains(out, "in the last day 37 jobs of 40 ran an application that was seen no second time; slurmbridge profiles identify") {
		t.Error(out)
	}
	if out := printed(&httpapi.Report{At: time.Now(), Mode: "active", Gate: "3", Seen: &history.Seen{Jobs: 40}}); strings.Contains(out, "second time") {
		t.Error(out)
	}
}
