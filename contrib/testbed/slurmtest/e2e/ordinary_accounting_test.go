package e2e

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// TestOrdinaryAccounting submits a burst of ordinary jobs to a cluster with the bridge and to one without, and compares
// what sprio, sshare and squeue --start say of them.
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

// burst submits n jobs of two users, which never start.
func (s *side) burst(n int) {
	s.must("scontrol", "update", "PartitionName=also", "State=DOWN")
	kinds := []string{
		"", "--nice=7", "--gres=gpu:1", "--ntasks=2", "--gres=gpu:titanxp:2", "--time=7 --comment=mine",
		"--mem=300",
	}
	for i, user := range []string{ann, bob} {
		var script strings.Builder
		for j := range n / 2 {
			fmt.Fprintf(&script, "sbatch --parsable --output=/dev/null --time=9 --partition=also --job-name=j%d_%d %s "+
				"--wrap=true || exit\n", i, j, kinds[j%len(kinds)])
		}
		if out, err := s.RunAs(s.t.Context(), user, "sh", "-c", script.String()); err != nil {
			s.fail("%v: %s", err, out)
		}
	}
}

// rows are a command's lines, the gate's and SlurmUser's apart. Jobs' numbers become names.
func (s *side) rows(command string, args ...string) map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(s.must("squeue", "--all", "--noheader", "--format=%i|%j")) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), "|")
		names[id] = name
	}
	out := map[string]string{}
	for line := range strings.Lines(s.must(command, args...)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), "|")
		line = cmp.Or(names[strings.TrimSpace(id)], id) + "|" + rest
		if !strings.Contains(line, "slurm") {
			out[line] = "there"
		}
	}
	return out
}
