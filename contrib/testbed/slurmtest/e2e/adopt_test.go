package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// unchanged are the jobs of three users that never asked to share: one has opted out, of one nothing is known, one
// names the type of the card. Behind jobs that share no other one waits: it would take a free GPU first, and they would
// have to go in time. Those whose request is per job or task become others at submission, since Slurm replaces none of
// them later.
var unchanged = []unchangedJob{
	{"first", bob, "--gres=gpu:1 --comment=share:no", 6, false, false},
	{"out", bob, "--gres=gpu:1 --comment=share:no", 1, false, false},
	{"alone", bob, "--gres=gpu:1 --exclusive --comment=app=m3000g30d20", 1, false, false},
	{"unknown", man, "--gpus-per-node=1", 1, false, false},
	// it fails where it has no such variable
	{"reads", ann, "--gpus-per-node=1 --comment=app=m3000g30d20", 1, false, false},
	// it leaves nothing to share
	{"several", ann, "--gres=gpu:1 --ntasks=2 --nodes=1 --comment=app=m9000g80d20", 1, false, false},
	// it would lose the partition's cores per GPU
	{"pergpu", ann, "--partition=each --gres=gpu:1 --comment=app=m3000g30d20", 1, false, false},
	{"untyped", ann, "--gres=gpu --comment=app=m3000g30d20", 20, true, false},
	{"typed", ann, "--gres=gpu:titanxp:1 --comment=app=m3000g30d20", 20, true, false},
	{"pernode", ann, "--gpus-per-node=titanxp:1 --comment=app=m3000g30d20", 20, true, false},
	{"perjob", ann, "--gpus=1 --comment=app=m3000g30d20", 20, true, true},
	{"pertask", ann, "--gpus-per-task=1 --ntasks=1 --comment=app=m3000g30d20", 20, true, true},
}

type unchangedJob struct {
	name, user, args string
	seconds          float64
	shares, perJob   bool
}

// submitUnchanged submits jobs that run for so many seconds at most, and returns their numbers by name.
func (s *side) submitUnchanged(jobs []unchangedJob, most float64) map[string]string {
	s.t.Helper()
	ids := map[string]string{}
	for _, j := range jobs {
		script := fmt.Sprintf("sleep %g", min(j.seconds, most))
		if j.name == "reads" {
			script += "\n[ \"$SLURM_GPUS_PER_NODE\" = 1 ]"
		}
		ids[j.name] = must.Get(s.Submit(s.t.Context(), j.user, script,
			append(strings.Fields(j.args), "--job-name="+j.name, "--time=5")...))(s.t)
	}
	return ids
}

const man = "man"

// adoptSteps are where the bridge is killed; "" = nowhere.
var adoptSteps = []string{"", "gate", "plan", "repaired", "journaled", "prepare", "release"}

// Unchanged jobs share by the site's rule, and each job that isn't put into a group is what it is on plain Slurm, field
// by field, wherever the bridge is killed.
func TestAdoptedJobs(t *testing.T) {
	t.Parallel()
	slurmtest.Require(t)
	adopts(t)
	for _, step := range adoptSteps {
		t.Run("killed at "+step, func(t *testing.T) {
			t.Parallel()
			adoptedJobs(t, step)
		})
	}
}

// adopts skips a test on releases that replace no request for a whole GPU.
func adopts(t *testing.T) {
	t.Helper()
	if release := release(t); text.GivesUsedGPUs(release) {
		t.Skipf("Slurm %s replaces no request for a whole GPU", release)
	}
}

// adopting is a cluster whose bridge has a rule for all jobs of one GPU, and a plain one.
func adopting(t *testing.T, how job.Mode, quiet bool) (*rig, [2]*side) {
	t.Helper()
	o := slurmtest.Options{
		Sharing: "shard", Extra: []string{
			"FirstJobId=" + firstJob, "PriorityFlags=ACCRUE_ALWAYS", "PartitionName=gates Nodes=ALL Hidden=YES",
			"PartitionName=each Nodes=ALL DefCpuPerGPU=2",
		},
	}
	plain := o
	plain.Extra = append(slices.Clone(o.Extra), "JobRequeue=1")
	r, sides, _ := besidePlain(t, options{
		Options: o, quiet: quiet,
		settings: settings{GatePartition: "gates", Adopt: how, Lease: time.Minute},
	}, plain)
	return r, sides
}

// fieldsOf are those of jobs with these names.
func (s *side) fieldsOf(names ...string) map[string]string {
	out := map[string]string{}
	for _, f := range s.jobs() {
		if !slices.Contains(names, f["JobName"]) {
			continue
		}
		for field, value := range f {
			if field != "AdminComment" || value != "" { // one that is taken away again is empty
				out[f["JobName"]+"/"+field] = s.plain(value)
			}
		}
	}
	return out
}

// completed waits until jobs have.
func (s *side) completed(jobs ...unchangedJob) {
	s.t.Helper()
	for _, j := range jobs {
		s.until(j.name+" completes", func() bool { return s.fieldsOf(j.name)[j.name+"/JobState"] == "COMPLETED" })
	}
}

func adoptedJobs(t *testing.T, step string) {
	r, sides := adopting(t, job.Active, step != "")
	if step != "" {
		r.startOnly("") // until the jobs wait
	}
	r.until("a gate, and a rule in its file",
		func() bool { return r.gate() != "" && strings.Contains(r.gateText(), "adopt=") })
	alike := slices.DeleteFunc(slices.Clone(unchanged), func(j unchangedJob) bool { return j.perJob })
	jobs := alike
	if step == "" {
		jobs = unchanged
	}
	var ids map[string]string
	sides[0].submitUnchanged(alike, 20)
	r.unseen(func() { ids = sides[1].submitUnchanged(jobs, 20) })
	if step != "" {
		r.kill()
		r.diesAt(step)
		r.start()
	}
	var alone []string
	for _, j := range jobs {
		r.reach("COMPLETED", ids[j.name])
		f := r.job(ids[j.name])
		shares := strings.Contains(f["TresPerNode"], "shard")
		if !j.perJob && (!j.shares || !shares) {
			alone = append(alone, j.name)
		}
		if j.perJob && (!shares || f["TresPerJob"]+f["TresPerTask"] != "" && !strings.HasPrefix(f["TresPerTask"], "cpu")) {
			t.Errorf("%s doesn't share: %v", j.name, f)
		}
	}
	sides[0].completed(alike...)
	compare(t, sides, "jobs of no group", func(s *side) map[string]string { return s.fieldsOf(alone...) })
	if step != "" {
		return
	}
	if len(alone) > 7 {
		t.Errorf("only the jobs %v had no group", alone)
	}
	said := regexp.MustCompile(`^"?slurmbridge: \[shard:\d+ on n1, was gpu(:titanxp:1)?\].*by a rule of the site \(partition gpu or each\); --comment=share:no opts out`)
	for _, j := range alike {
		if f := r.job(ids[j.name]); j.shares && !said.MatchString(f["AdminComment"]) {
			t.Errorf("%s: %q", j.name, f["AdminComment"])
		}
	}
}

// In shadow the rules of an active bridge change nothing of the jobs that they match, field by field.
func TestAdoptInShadow(t *testing.T) {
	slurmtest.Require(t)
	adopts(t)
	t.Parallel()
	r, sides := adopting(t, job.Shadow, false)
	var names []string
	for _, j := range unchanged {
		names = append(names, j.name)
	}
	sides[0].submitUnchanged(unchanged, 2)
	r.unseen(func() { sides[1].submitUnchanged(unchanged, 2) })
	asked := r.atOnce(2, func(int) string { return r.submit(ann, small, 2) })
	for _, s := range sides {
		s.completed(unchanged...)
	}
	compare(t, sides, "jobs that a rule in shadow matches",
		func(s *side) map[string]string { return s.fieldsOf(names...) })
	r.reach("COMPLETED", asked...)
	must.Contain(t, r.job(asked[0])["TresPerNode"], "shard", "a job that asks to share, so the bridge is active")
	if text := r.gateText(); strings.Contains(text, "adopt=") {
		t.Errorf("the gate file has rules: %s", text)
	}
}

// A limit on GPUs holds for adopted jobs that have shares, and with the weights that doctor prints each is charged for
// its part of the GPU: their user's fair share is better than on plain Slurm, where they have a GPU each.
func TestAdoptedJobsInAccounting(t *testing.T) {
	t.Parallel()
	slurmtest.Require(t)
	adopts(t)
	r := limited(t, options{
		Options:  slurmtest.Options{Sharing: "shard"},
		settings: settings{Adopt: job.Active, Lease: time.Minute},
	}, "PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=YEARLY", "AccountingStorageTRES=gres/gpu,gres/shard",
		"PartitionName=DEFAULT TRESBillingWeights=GRES/gpu=1000,GRES/shard=10")
	r.account("modify", "account", "lab", "set", "GrpTRES=gres/gpu=2")
	// charged is what each way of running four jobs costs their user, the most that run at a time, and the mean part of a
	// GPU that they have.
	charged := func(user string, adopt bool) (used float64, most int, part float64) {
		var ids []string
		submit := func() {
			for range 4 {
				ids = append(ids, must.Get(r.Submit(t.Context(), user, "sleep 15", "--gres=gpu:1", "--time=5",
					"--comment=app=m3000g30d15"))(t))
			}
		}
		if !adopt {
			submit()
		} else {
			r.unseen(submit)
		}
		most = r.most(map[string][]string{user: ids})[user]
		shares := 0
		for _, id := range ids {
			percent := 100.
			if _, count, is := strings.Cut(r.job(id)["TresPerNode"], "shard:"); is {
				shares++
				percent = must.Get(strconv.ParseFloat(count, 64))(t)
			}
			part += percent / 100 / float64(len(ids))
		}
		must.Equal(t, adopt, shares > 1, "%d jobs of %s share", shares, user)
		r.until(user+" is charged", func() bool {
			for line := range strings.Lines(r.says("sshare", "-n", "-P", "-A", "lab", "-u", user, "-o", "User,RawUsage")) {
				if v, is := strings.CutPrefix(strings.TrimSpace(line), user+"|"); is {
					_, _ = fmt.Sscan(v, &used)
				}
			}
			return used >= 15000
		})
		return used, most, part
	}
	plain, at, _ := charged(bob, false) // no bridge runs yet
	if at > 2 {
		t.Fatalf("plain Slurm runs %d jobs under a limit of 2 GPUs", at)
	}
	r.begin()
	r.until("a rule in the gate file", func() bool { return strings.Contains(r.gateText(), "adopt=") })
	adopted, at, part := charged(ann, true)
	t.Logf("charged on plain Slurm: %g, adopted: %g, for %.2f of a GPU; %d at a time", plain, adopted, part, at)
	if at > 2 {
		t.Errorf("%d jobs run under a limit of 2 GPUs", at)
	}
	// A run may take some seconds more, and be charged for them.
	if part > 0.7 || adopted > 1.3*part*plain || adopted < 0.9*part*plain {
		t.Errorf("charged on plain Slurm: %g, adopted: %g, for %.2f of a GPU", plain, adopted, part)
	}
	factor := map[string]float64{}
	out := r.as("", "sshare", "-n", "-P", "-a", "-A", "lab", "-o", "User,LevelFS")
	for line := range strings.Lines(out) {
		user, v, _ := strings.Cut(strings.TrimSpace(line), "|")
		factor[user], _ = strconv.ParseFloat(v, 64)
	}
	if !(factor[ann] > factor[bob]) {
		t.Errorf("fair share: %s", out)
	}
}
