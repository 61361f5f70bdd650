package doctor

import (
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// As recorded, neither cluster has all the times that are advised: it gets a note, not
// a warning.
func TestSchedulerAdvice(t *testing.T) {
	for file, c := range map[string]struct {
		what []string
		line string
	}{
		"22.05.8-plain.config":   {[]string{"every 60 s (sched_interval)", "every 30 s (bf_interval)", "every 3 s (batch_sched_delay)"}, Scheduler},
		"22.05.8-bridged.config": {[]string{"every 60 s (sched_interval)", "every 3 s (batch_sched_delay)"}, "bf_interval=10,sched_interval=2,batch_sched_delay=1"},
		"24.11.5-bridged.config": {[]string{"every 60 s (sched_interval)", "every 3 s (batch_sched_delay)"}, "bf_interval=10,sched_interval=2,batch_sched_delay=1"},
	} {
		found := Examine(&Facts{Config: text.ParseConfig([]byte(recorded(t, file)))})
		var got *Finding
		for i := range found {
			if found[i].Check == "scheduler" {
				got = &found[i]
			}
		}
		if got == nil {
			t.Errorf("%s: no advice in %v", file, checks(found))
			continue
		}
		if got.Severity != Note || strings.Count(got.What, "every") != len(c.what) {
			t.Errorf("%s: %+v", file, got)
		}
		for _, w := range c.what {
			if !strings.Contains(got.What, w) {
				t.Errorf("%s: %q doesn't say %q", file, got.What, w)
			}
		}
		for _, w := range []string{"idle", "gate opens", "whole site", "cost", "sdiag", "not a need"} {
			if !strings.Contains(got.Why, w) {
				t.Errorf("%s: %q says nothing of %q", file, got.Why, w)
			}
		}
		if fix := got.Fix[0]; fix.File != "/etc/slurm/slurm.conf" || fix.Lines[0] != "SchedulerParameters="+c.line {
			t.Errorf("%s: %+v", file, fix)
		}
	}
}

// adviseOnScheduler fails unless doctor advises the given parameters, "" = nothing, in place of others on a
// node with so many GPUs, 0 = no node.
func adviseOnScheduler(t *testing.T, params string, gpus int, want string) {
	t.Helper()
	f := &Facts{Config: map[string]string{"SchedulerType": "sched/backfill", "SchedulerParameters": params}}
	if gpus > 0 {
		f.Nodes = []text.Node{{Name: "n1", GPUs: map[string]int{"a100": gpus}}}
	}
	e := &exam{Facts: f}
	e.scheduler()
	switch {
	case want == "" && len(e.found) > 0:
		t.Errorf("%s: %+v", params, e.found)
	case want != "" && (len(e.found) != 1 || e.found[0].Fix[0].Lines[0] != "SchedulerParameters="+want):
		t.Errorf("%s: %+v, want %s", params, e.found, want)
	}
}

func TestSchedulerTimes(t *testing.T) {
	for params, want := range map[string]string{
		Scheduler: "",
		"sched_interval=5,bf_interval=1,batch_sched_delay=0":          "",
		"defer, sched_interval=2 ,bf_interval=10,batch_sched_delay=1": "",
		"sched_interval=2,bf_interval=5,batch_sched_delay=20":         Scheduler,
		"sched_interval=2,bf_interval=5":                              Scheduler,
		"sched_interval=-1,bf_interval=5":                             "bf_interval=5,sched_interval=2,batch_sched_delay=1",
		"bf_continue,SCHED_INTERVAL=30,bf_interval=60,max_rpc_cnt=9":  "bf_continue,max_rpc_cnt=9," + Scheduler,
		"bf_interval=soon": Scheduler,
	} {
		adviseOnScheduler(t, params, 0, want)
	}
	// Without backfill there is no advice on its interval.
	e := &exam{Facts: &Facts{Config: map[string]string{"SchedulerType": "sched/builtin", "SchedulerParameters": "sched_interval=2,batch_sched_delay=1"}}}
	if e.scheduler(); len(e.found) != 0 {
		t.Errorf("%+v", e.found)
	}
}

// Where more jobs may start at once than Slurm looks at, it should look at more.
func TestSchedulerDepth(t *testing.T) {
	well := Scheduler
	for params, want := range map[string]string{
		well:                              well + ",default_queue_depth=120",
		well + ",default_queue_depth=120": "",
		"default_queue_depth=50," + well:  well + ",default_queue_depth=120",
		"Default_Queue_Depth=x," + well:   well + ",default_queue_depth=120",
	} {
		adviseOnScheduler(t, params, 40, want)
	}
}
