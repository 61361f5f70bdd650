package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

func testOptions(t *testing.T) options {
	t.Helper()
	o := options{scale: 40, build: "../../../build", lua: "../../job_submit.lua"}
	cluster.Require(t, o.build)
	return o
}

// Only jobs that completed in both runs are compared.
func TestLateness(t *testing.T) {
	names := []string{"gromacs", "gromacs", "gromacs", "gromacs"}
	plain := &result{ends: map[int]float64{0: 100, 1: 200, 2: 300}}
	bridged := &result{ends: map[int]float64{0: 149, 1: 251, 3: 900}}
	if got, want := lateness(plain, bridged, names, 50), (cluster.Lateness{Later: 1, Late: 1, WorstS: 51}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// What the report is read for.
func TestReport(t *testing.T) {
	r := report{
		Plain: &result{MakespanS: 200, JobsCompleted: 2}, Bridged: &result{MakespanS: 120, JobsCompleted: 2}, Objective: "makespan", TimeScale: 50,
		Lateness: cluster.Lateness{Later: 3, Late: 2, WorstS: 77},
	}
	body, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(body, &back); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{"objective": "makespan", "jobs_later": 3.0, "jobs_late": 2.0, "late_worst_s": 77.0} {
		if back[k] != want {
			t.Errorf("%s is %v, want %v", k, back[k], want)
		}
	}
	var out bytes.Buffer
	show(&out, &r)
	for _, w := range []string{"ended later than on plain Slurm │            │       3 │", "1 s by the clock (50 GPU s)", "at most by 77 GPU s", "objective makespan"} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("%q is missing in\n%s", w, out.String())
		}
	}
}

// The whole way, through every part: an unknown application runs alone, its
// record arrives signed, its profile is learned, and the next ones share a GPU
// under MPS.
func TestUnknownApplicationIsLearned(t *testing.T) {
	o := testOptions(t)
	o.cold = true
	o.after = func(ctx context.Context, s *cluster.Stack) error {
		out, err := s.RunAs(ctx, "slurm", s.Bin("slurmbridge"), "profiles", "list", "--json", "--config", s.Path("slurmbridge.yaml"))
		if err != nil {
			return err
		}
		var list []struct {
			User    string
			Profile struct {
				App       string
				Runs      int
				DurationS float64 `json:"duration_s"`
			}
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if len(list) != 1 || list[0].User != cluster.Owner || list[0].Profile.App != "gromacs" || list[0].Profile.Runs < 1 {
			return fmt.Errorf("profiles %+v", list)
		}
		// 83 GPU seconds, and what starting and ending take on a busy machine.
		if d := list[0].Profile.DurationS * o.scale; d < 70 || d > 83+3*o.scale {
			return fmt.Errorf("gromacs is held to take %.0f GPU s, not 83", d)
		}
		if out, err := s.RunAs(ctx, "slurm", s.Bin("slurmbridge"), "why", "--server", s.URL, "3"); err != nil {
			return fmt.Errorf("why: %w: %s", err, out)
		}
		return nil
	}
	res, err := measure(t.Context(), o, []string{"gromacs", "gromacs", "gromacs", "gromacs"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if res.JobsCompleted != 4 || res.OOM != 0 || res.bridge.Groups == 0 {
		t.Errorf("%+v, %d times put together", res, res.bridge.Groups)
	}
}

// Jobs that are known share from the start, and two that don't fit never meet.
func TestKnownApplicationsShare(t *testing.T) {
	o := testOptions(t)
	names := []string{"vgg16", "vgg16", "alexnet", "gromacs", "gromacs"}
	res, err := measure(t.Context(), o, names, true)
	if err != nil {
		t.Fatal(err)
	}
	if res.JobsCompleted != len(names) || res.OOM != 0 || res.bridge.Groups == 0 {
		t.Errorf("%+v, %d times put together", res, res.bridge.Groups)
	}
}
