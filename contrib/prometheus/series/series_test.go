package series

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	s := Daemons()
	for _, c := range []struct{ query, want string }{
		{`sum by (state, job) (slurmbridge_jobs{instance=~"a|b"})`, ""},
		{`histogram_quantile(0.9, sum by (le) (rate(slurmbridge_costart_skew_seconds_bucket[5m])))`, ""},
		{`rate(slurmbridge_slurm_command_duration_seconds_sum{command="squeue"}[5m])`, ""},
		{`delta(gpuprof_spool_records{place="disk"}[5m])`, ""},
		{`gpuprof_job_gpu_utilization_ratio{job="gpuprof"} and on (gpu, instance) gpuprof_gpu_memory_used_bytes`, ""},
		{`up{job="x"} == 0`, ""},
		{`max by (job) (slurmbridge_gpus offset 5m) > bool 1.5e3 unless on (job) up`, ""},
		{`slurmbridge_job`, "no series"},
		{`slurmbridge_costart_skew_seconds`, "no series"},
		{`slurmbridge_jobs{state="a", stat=~"b,c"}`, `no label "stat"`},
		{`slurmbridge_jobs{stat="waiting"}`, `no label "stat"`},
		{`sum by (kind) (slurmbridge_jobs)`, `label "kind"`},
		{`slurmbridge_jobs / on (kind) up`, `label "kind"`},
		{`rate(slurmbridge_jobs[5m])`, "no counter"},
		{`delta(slurmbridge_groups_total[5m])`, "is a counter"},
		{`sum(rate(slurmbridge_groups_total{mode="x"}[5m])) / slurmbridge_gpu`, "no series"},
	} {
		err := s.Check(c.query)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.query, err, c.want)
		}
	}
}

func TestSyntax(t *testing.T) {
	if err := Syntax(t, `sum(slurmbridge_jobs{state="x"})`, `up{job="y"} == 0`); err != nil {
		t.Error(err)
	}
	if err := Syntax(t, `up`, `sum(slurmbridge_jobs`); err == nil || !strings.Contains(err.Error(), "unclosed") {
		t.Errorf("%v, want an unclosed parenthesis", err)
	}
}
