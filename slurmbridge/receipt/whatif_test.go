package receipt

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// wholly is a job that asked for a whole GPU and took an hour.
func wholly(ref, user string, ready, from float64, p *rlcore.Profile) history.Run {
	j := ran(ref, user, ready, from, from+60)
	j.WholeGPUs, j.Profile, j.Devices = 1, p, []gpuprof.GPU{{MemMiB: 10_000}}
	return j
}

// Eight jobs of an hour wait for one GPU of which each uses a third.
func TestWhatIf(t *testing.T) {
	heavy := &rlcore.Profile{App: "heavy", DurationS: 3600, PeriodS: 3600, Series: []rlcore.Use{{GPU: 0.95, Core: 0.9, MemMiB: 9000}}, Runs: 3}
	var jobs []history.Run
	for i := range 8 {
		jobs = append(jobs, wholly(fmt.Sprint(i), []string{"ann", "bob"}[i%2], 0, float64(60*i), light))
	}
	jobs = append(jobs, wholly("h", "eve", 0, 480, heavy), wholly("u", "eve", 0, 540, nil))
	never := wholly("n", "ann", 0, 600, light)
	never.Terms.NoShare = true
	jobs = append(jobs, never)
	before := fmt.Sprintf("%+v", jobs)
	x, err := world().WhatIf(jobs)
	if err != nil {
		t.Fatal(err)
	}
	if x.Jobs != 8 || x.Unknown != 1 || x.Replayed != 11 || len(x.Users) != 2 || len(x.Apps) != 2 || x.Users[0].Jobs != 4 || !strings.Contains(x.Users[0].Line, "--gres=gpu:shared") {
		t.Errorf("%+v", x)
	}
	if !(x.Freed > 2) || !(x.Theirs.Shared < x.Theirs.Alone) || !(x.All.Shared < x.All.Alone) || x.SlowWorst < 1 || x.Late != 0 {
		t.Errorf("freed %v, theirs %+v, all %+v, slowed %d by %v, late %d", x.Freed, x.Theirs, x.All, x.Slowed, x.SlowWorst, x.Late)
	}
	near(t, "use", x.Users[0].Use, 0.3)
	if fmt.Sprintf("%+v", jobs) != before {
		t.Error("the runs have changed")
	}
	var text strings.Builder
	x.Text(&text)
	for _, want := range []string{"What if 8 of 11 jobs", "light of ann", "left as they were: 1 job with a whole GPU"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("it doesn't say %q:\n%s", want, text.String())
		}
	}
	if _, err := world().WhatIf(jobs[8:]); !errors.Is(err, ErrReplay) || strings.Contains(err.Error(), "\n") {
		t.Errorf("nobody would gain: %v", err)
	}
}
