package series

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	s := Daemons()
	for _, c := range [][2]string{
		{`sum by (state, job) (slurmbridge_jobs{instance=~"a|b"})`, ""},
		{`histogram_quantile(0.9, sum by (le) (rate(slurmbridge_costart_skew_seconds_bucket[5m])))`, ""},
		{`rate(slurmbridge_slurm_command_duration_seconds_sum{command="squeue"}[5m])`, ""},
		{`delta(gpuprof_spool_records{place="disk"}[5m])`, ""},
		{`gpuprof_job_gpu_utilization_ratio{job="gpuprof"} and on (gpu, instance) gpuprof_gpu_memory_used_bytes`, ""},
		{`up{job="x"} == 0`, ""},
		{`sum(slurmbridge_jobs`, "unclosed"},
		{`slurmbridge_job`, "no series"},
		{`slurmbridge_costart_skew_seconds`, "no series"},
		{`slurmbridge_jobs{stat="waiting"}`, `no label "stat"`},
		{`sum by (kind) (slurmbridge_jobs)`, `label "kind"`},
		{`slurmbridge_jobs / on (kind) up`, `label "kind"`},
		{`rate(slurmbridge_jobs[5m])`, "no counter"},
		{`delta(slurmbridge_groups_total[5m])`, "is a counter"},
		{`sum(rate(slurmbridge_groups_total{mode="x"}[5m])) / slurmbridge_gpu`, "no series"},
	} {
		query, want := c[0], c[1]
		err := s.Check(query)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}
