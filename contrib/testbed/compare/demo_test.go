package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func testOptions(t *testing.T) *options {
	t.Helper()
	o := &options{base: &cluster.Setup{Build: "../../../build", Lua: "../../job_submit.lua"}, scale: 40, parallel: 1}
	cluster.Require(t, o.base.Build)
	return o
}

func quietLine() *cluster.Line { return &cluster.Line{Out: io.Discard, Now: time.Now} }

// measured runs jobs with the bridge as it comes.
func measured(t *testing.T, o *options, change func(c *cell), names ...string) *cell {
	t.Helper()
	chosen, err := pick([]string{"dqn"})
	if err != nil {
		t.Fatal(err)
	}
	c := o.cell("random", chosen[0], names, nil)
	change(c)
	compare(t.Context(), o, []*cell{c}, newBoard(quietLine(), []*cell{c}))
	if c.err != nil {
		t.Fatal(c.err)
	}
	if c.figures.JobsCompleted != len(names) || c.figures.OOM != 0 || c.bridge.Groups == 0 {
		t.Errorf("%+v, %d times put together", c.figures, c.bridge.Groups)
	}
	return c
}

// What the report is read for, and the keys that others read.
func TestDemoReport(t *testing.T) {
	r := demoReport{
		Plain:   &figures{MakespanS: 200, JobsCompleted: 2, slowdowns: []float64{1, 1}},
		Bridged: &figures{MakespanS: 120, JobsCompleted: 2, slowdowns: []float64{1.05, 1.3}}, Objective: "makespan", TimeScale: 50,
		Lateness: cluster.Lateness{Later: 3, Late: 2, WorstS: 77},
	}
	body := must.Get(json.Marshal(&r))(t)
	var back map[string]any
	must.OK(t, json.Unmarshal(body, &back))
	for k, want := range map[string]any{"objective": "makespan", "jobs_later": 3.0, "jobs_late": 2.0, "late_worst_s": 77.0} {
		if back[k] != want {
			t.Errorf("%s is %v, want %v", k, back[k], want)
		}
	}
	for _, key := range strings.Fields("plain bridged makespan_s mean_turnaround_s gpu_util mem_util jobs_completed jobs_failed oom" +
		" groups costart_skew_p50_s costart_skew_p95_s added_delay_max_s time_scale seed jobs slurm profiles_known") {
		if !bytes.Contains(body, []byte(`"`+key+`":`)) {
			t.Errorf("%s is missing", key)
		}
	}
	var out bytes.Buffer
	r.show(&out)
	for _, w := range []string{"ended later than on plain Slurm │            │       3 │", "1 s by the clock (50 GPU s)", "at most by 77 GPU s", "objective makespan", "under 10 %       │          2 │       1"} {
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
	after := func(ctx context.Context, s *cluster.Stack) error {
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
	measured(t, o, func(c *cell) { c.setup.Cold, c.after = true, after }, "gromacs", "gromacs", "gromacs", "gromacs")
}

// Jobs that are known share from the start, and two that don't fit never meet.
func TestKnownApplicationsShare(t *testing.T) {
	measured(t, testOptions(t), func(*cell) {}, "vgg16", "vgg16", "alexnet", "gromacs", "gromacs")
}
