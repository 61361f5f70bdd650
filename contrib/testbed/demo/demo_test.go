package main

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

func testOptions(t *testing.T) options {
	t.Helper()
	o := options{scale: 40, build: "../../../build", lua: "../../job_submit.lua"}
	cluster.Require(t, o.build)
	return o
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
