package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
)

// limited is a cluster with accounting and two nodes, on which ann, bob and SlurmUser
// have accounts; more are further lines of slurm.conf.
func limited(t *testing.T, o options, more ...string) *rig {
	t.Helper()
	slurmtest.RequireAccounting(t)
	o.Accounting, o.Nodes, o.quiet = true, 2, true
	o.Extra = append(o.Extra, "AccountingStorageEnforce=associations,limits,qos",
		"AccountingStorageTRES=gres/gpu,gres/mps",
		"PriorityType=priority/multifactor", "PriorityWeightFairshare=10000", "PriorityCalcPeriod=1", "PriorityWeightAge=10")
	o.Extra = append(o.Extra, more...)
	r := newRig(t, o)
	r.account("add", "account", "lab")
	for _, user := range []string{ann, bob} {
		r.account("add", "user", user, "account=lab")
	}
	return r
}

func (r *rig) account(args ...string) {
	r.t.Helper()
	must.OK(r.t, r.Account(context.Background(), args...))
}

// begin gives SlurmUser an account and starts the bridge.
func (r *rig) begin() {
	r.t.Helper()
	r.account("add", "user", "slurm", "account=lab")
	r.start()
}

// most waits until jobs have ended, and returns how many of each user's ran at a time.
func (r *rig) most(jobs map[string][]string) map[string]int {
	r.t.Helper()
	most := map[string]int{}
	r.until("all jobs have ended", func() bool {
		out, err := r.Run(r.t.Context(), "squeue", "-h", "-o", "%i|%u|%t")
		left, runs := err != nil, map[string]int{}
		for row := range strings.Lines(out) {
			if f := strings.Split(strings.TrimSpace(row), "|"); len(f) == 3 && slices.Contains(jobs[f[1]], f[0]) {
				left = true
				if f[2] != "PD" {
					runs[f[1]]++
					most[f[1]] = max(most[f[1]], runs[f[1]])
				}
			}
		}
		return !left
	})
	return most
}

// none fails the test where a job was left to Slurm, and returns how many had less than a whole GPU.
func (r *rig) none(ids []string) (shared int) {
	r.t.Helper()
	for _, id := range ids {
		f := r.job(id)
		must.Equal(r.t, f["JobState"], "COMPLETED", "job %s", id)
		if !strings.HasSuffix(f["TresPerNode"], ":100") {
			shared++
		}
		if strings.Contains(f["AdminComment"], "left to Slurm") {
			r.t.Errorf("job %s: %s", id, f["AdminComment"])
		}
	}
	return shared
}

// share submits two jobs, and fails the test unless they share.
func (r *rig) share() {
	r.t.Helper()
	ids := r.atOnce(2, func(int) string { return r.submit(ann, small, 3) })
	r.reach("COMPLETED", ids...)
	must.Equal(r.t, r.none(ids), 2, "jobs that share")
}

// doctor examines the cluster and returns how bad one of its findings is, "" = it isn't one.
func (r *rig) doctor(check string) doctor.Severity {
	r.t.Helper()
	f := must.Get(doctor.Collect(context.Background(), r.Run, config.Default(), "slurm"))(r.t)
	for _, found := range doctor.Examine(f) {
		if found.Check == check {
			return found.Severity
		}
	}
	return ""
}

// Without an account SlurmUser gets no gate: shared jobs are ordinary ones, and log
// and doctor say why. With one jobs are grouped.
func TestGateNeedsAccount(t *testing.T) {
	t.Parallel()
	r := limited(t, options{}, "EnforcePartLimits=ALL")
	r.startOnly("")
	r.until("a word of the gate", func() bool { return r.logged(cluster.BridgeDaemon, "level=ERROR msg=gate") })
	must.Equal(t, r.doctor("gate-account"), doctor.Error, "what doctor says of the missing account")
	id := r.submit(ann, small, 1)
	r.reach("COMPLETED", id)
	if g := r.job(id)["TresPerNode"]; !strings.HasSuffix(g, "mps:100") {
		t.Errorf("without a gate it had %s", g)
	}
	r.account("add", "user", "slurm", "account=lab")
	must.Equal(t, r.doctor("gate-account"), "", "what doctor says of the account that is there")
	// A limit on GPUs is one that shares pass by.
	r.account("modify", "user", ann, "where", "account=lab", "set", "GrpTRES=gres/gpu=1")
	must.Equal(t, r.doctor("shares-limits"), doctor.Warning, "what doctor says of a limit on GPUs")
	r.account("modify", "user", ann, "where", "account=lab", "set", "GrpTRES=gres/mps=100")
	must.Equal(t, r.doctor("shares-limits"), "", "what doctor says of a limit on both")
	r.until("a gate with an account", func() bool { return r.gate() != "" })
	r.share()

	// Where the partition refuses the default account, the gate is in another one of SlurmUser's.
	r.account("add", "account", "ops")
	r.account("add", "user", "slurm", "account=ops")
	gate := r.gate()
	r.scontrol("update", "PartitionName="+slurmtest.Partition, "DenyAccounts=lab")
	r.cancel(gate)
	r.until("a gate in another account", func() bool { g := r.gate(); return g != "" && g != gate })
	if got := r.job(r.gate())["Account"]; got != "ops" || !r.logged(cluster.BridgeDaemon, "account=ops") {
		t.Errorf("the gate is in account %q", got)
	}
}

// Whatever kind of limit it is that a user is at, every job of that user runs, none is
// left to Slurm for good, and no other user's job waits for them.
func TestAtWhateverLimitJobsRun(t *testing.T) {
	t.Parallel()
	r := limited(t, options{}, "PartitionName=DEFAULT TRESBillingWeights=CPU=1,GRES/gpu=200,GRES/mps=2")
	for _, q := range [][]string{
		{"jobs", "MaxJobsPerUser=2"},
		{"gpu", "MaxTRESPerUser=gres/gpu=1"},
		{"mps", "MaxTRESPerUser=gres/mps=100"},
		{"group", "GrpJobs=3"},
		{"part", "MaxJobsPerUser=2"},
		{"few", "MaxSubmitJobsPerUser=2"},
	} {
		r.account("add", "qos", q[0], "set", q[1])
	}
	r.account("modify", "account", "lab", "set", "qos+=jobs,gpu,mps,group,few")
	r.account("add", "account", "small")
	r.account("add", "user", ann, "account=small", "GrpTRES=gres/mps=100")
	r.account("add", "user", bob, "account=small")
	r.begin()
	for _, c := range []struct {
		name     string
		args     []string
		ann, bob int // that may run at a time
		bobs     int // jobs of bob's
	}{
		{"jobs a user", []string{"--qos=jobs"}, 2, 2, 3},
		// shares are no GPUs: the limit is none, and one user may have both GPUs at once
		{"GPUs a user", []string{"--qos=gpu"}, 6, 6, 0},
		{"shares a user", []string{"--qos=mps"}, 3, 3, 3},
		{"jobs of a group", []string{"--qos=group"}, 3, 3, 3},
		{"shares of an association", []string{"--account=small"}, 3, 6, 3},
		{"jobs a user by the partition", nil, 2, 2, 3},
	} {
		if c.args == nil {
			r.scontrol("update", "PartitionName="+slurmtest.Partition, "QOS=part")
		}
		jobs := map[string][]string{}
		r.unseen(func() { // else the first run alone, and their user hardly comes to a limit
			for range 6 {
				jobs[ann] = append(jobs[ann], r.submit(ann, small, 4, append(c.args, "--time=2")...))
			}
			for range c.bobs {
				jobs[bob] = append(jobs[bob], r.submit(bob, small, 4, append(c.args, "--time=2")...))
			}
		})
		most := r.most(jobs)
		all := slices.Concat(jobs[ann], jobs[bob])
		shared := r.none(all)
		t.Logf("%s: %v at a time; %d of %d shared a GPU", c.name, most, shared, len(all))
		least := 5
		if c.ann == 2 {
			least = 4 // after the first two the next job may start as soon as one of them ends, alone
		}
		if shared < least {
			t.Errorf("%s: %d of %d shared a GPU", c.name, shared, len(all))
		}
		if most[ann] > c.ann || most[bob] > c.bob {
			t.Errorf("%s: %v ran at a time", c.name, most)
		}
		if c.bobs == 0 && most[ann] < 4 {
			t.Errorf("a limit on GPUs holds shares: %v ran at a time", most)
		}
	}
	r.scontrol("update", "PartitionName="+slurmtest.Partition, "QOS=")

	// The jobs behind the gate count as submitted.
	for range 2 {
		r.submit(ann, small, 1, "--qos=few", "--hold")
	}
	if id, err := r.Submit(t.Context(), ann, "true", "--qos=few", "--gres=gpu:shared"); err == nil {
		t.Errorf("job %s is taken beyond MaxSubmitJobsPerUser", id)
	}
}
