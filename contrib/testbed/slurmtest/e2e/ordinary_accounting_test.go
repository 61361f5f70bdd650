package e2e

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// TestOrdinaryAccounting submits a burst of ordinary jobs to a cluster with the bridge and to one without, and compares
// what sprio, sshare, squeue --start and sacct say of them.
func TestOrdinaryAccounting(t *testing.T) {
	t.Parallel()
	const burst = 1000
	if os.Getenv("SLURMBRIDGE_SLOW") == "" || testing.Short() {
		t.Skip("two databases and 2,000 submissions: SLURMBRIDGE_SLOW=1 and make test-compat run it")
	}
	o := slurmtest.Options{Accounting: true, Nodes: 2, GPUs: 2, Extra: []string{
		"FirstJobId=" + firstJob, "AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu",
		"PriorityType=priority/multifactor", "PriorityWeightFairshare=10000", "PriorityWeightJobSize=500",
		"PriorityWeightPartition=300",
		"PriorityWeightQOS=200", "PriorityWeightTRES=gres/gpu=700", "PriorityCalcPeriod=1", "PriorityDecayHalfLife=0",
		"PriorityUsageResetPeriod=YEARLY",
		"PartitionName=also Nodes=n1 PriorityJobFactor=5",
	}}
	slurmtest.RequireAccounting(t)
	bridged := o
	bridged.Prepare = etcHooks(2, 2)
	bridged.Extra = append([]string{"PartitionName=gates Nodes=ALL Hidden=YES"}, o.Extra...)
	o.Sharing = "none"
	r, sides, both := besidePlain(t, options{Options: bridged, settings: settings{GatePartition: "gates"}, quiet: true}, o)
	both((*side).associations)
	r.start()
	both(func(s *side) { s.burst(burst) })
	compare(t, sides, "sprio",
		func(s *side) map[string]string { return s.rows("sprio", "--noheader", "--format=%i|%u|%F|%J|%P|%Q|%N") })
	compare(t, sides, "sshare", func(s *side) map[string]string {
		return s.rows("sshare", "--all", "--parsable2", "--noheader", "--format=Account,User,RawShares,NormShares,FairShare")
	})
	compare(t, sides, "squeue --start", func(s *side) map[string]string {
		return s.rows("squeue", "--start", "--noheader", "--format=%i|%u|%T|%Y|%D")
	})
	both(func(s *side) { s.must("scontrol", "update", "PartitionName="+slurmtest.Partition, "State=UP") })
	both(func(s *side) { s.must("scancel", "--partition=also") })
	both(func(s *side) {
		if !s.Wait(t.Context(), 5*time.Minute, func() bool {
			time.Sleep(500 * time.Millisecond) // two clusters look at once
			return strings.TrimSpace(s.must("squeue", "--noheader", "--user="+ann+","+bob)) == ""
		}) {
			s.fail("jobs don't end:\n%s", s.must("squeue"))
		}
	})
	compare(t, sides, "sacct", func(s *side) map[string]string {
		return s.rows("sacct", "--allusers", "--parsable2", "--noheader",
			"--format=JobID,JobName,User,Account,Partition,QOS,State,ExitCode,ReqTRES,AllocTRES,NNodes,Timelimit,Comment,AdminComment,Priority")
	})
}

// associations gives users accounts of different shares.
func (s *side) associations() {
	for _, args := range [][]string{
		{"add", "account", "lab", "fairshare=30"},
		{"add", "account", "other", "fairshare=10"},
		{"add", "user", ann, "account=lab", "fairshare=3"},
		{"add", "user", bob, "account=other"},
		{"add", "user", "slurm", "account=lab", "fairshare=1"},
	} {
		if err := s.Account(s.t.Context(), args...); err != nil {
			s.fail("%v", err)
		}
	}
}

// burst submits n jobs of two users: a few that run once their partition is up, and others that never start.
func (s *side) burst(n int) {
	for _, p := range []string{slurmtest.Partition, "also"} {
		s.must("scontrol", "update", "PartitionName="+p, "State=DOWN")
	}
	kinds := []string{
		"", "--nice=7", "--gres=gpu:1", "--ntasks=2", "--gres=gpu:titanxp:2", "--time=7 --comment=mine",
		"--mem=300",
	}
	for i, user := range []string{ann, bob} {
		var script strings.Builder
		for j := range n / 2 {
			partition := "also"
			if j < len(kinds) {
				partition = slurmtest.Partition
			}
			fmt.Fprintf(&script, "sbatch --parsable --output=/dev/null --time=9 --partition=%s --job-name=j%d_%d %s "+
				"--wrap=true || exit\n", partition, i, j, kinds[j%len(kinds)])
		}
		if out, err := s.RunAs(s.t.Context(), user, "sh", "-c", script.String()); err != nil {
			s.fail("%v: %s", err, out)
		}
	}
}

// rows are a command's lines, the gate's and SlurmUser's apart. Jobs' numbers become names.
func (s *side) rows(command string, args ...string) map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(s.must("sacct", "--allusers", "--parsable2", "--noheader", "--allocations",
		"--format=JobID,JobName")) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), "|"); ok {
			names[id] = name
		}
	}
	out := map[string]string{}
	for line := range strings.Lines(s.must(command, args...)) {
		line = strings.TrimSpace(line)
		id, rest, _ := strings.Cut(line, "|")
		base, step, _ := strings.Cut(strings.TrimSpace(id), ".")
		if name, ok := names[base]; ok {
			line = name + "." + step + "|" + rest
		}
		if !strings.Contains(line, "slurm") {
			maps.Copy(out, map[string]string{line: "there"})
		}
	}
	return out
}
