package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// job_submit/all_partitions puts the gate's hidden partition, too, into the list of each job that names none. Behind it
// job_submit.lua takes that out again: all kinds of jobs run, whether the bridge is there or not.
func TestGateAmongAllPartitions(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"ALL", "ANY", "NO"} {
		t.Run(limits, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{settings: settings{GatePartition: "slurmbridge"}, Options: slurmtest.Options{
				Scheduler: "sched_interval=2,bf_interval=2", JobSubmit: "job_submit/all_partitions,job_submit/lua",
				Extra: []string{
					"EnforcePartLimits=" + limits, "PartitionName=cpu Nodes=ALL",
					"PartitionName=slurmbridge Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1",
				},
			}})
			must.Equal(t, r.job(r.gate())["Partition"], "slurmbridge", "the gate's partition")
			all := func() {
				for _, user := range []string{ann, "root"} {
					for _, args := range [][]string{{"--time=5"}, {"--time=5", "--gres=gpu:1"}, {"--gres=gpu:shared"}} {
						id := r.any(user, 0.1, args...)
						r.reach("COMPLETED", id)
						if p := r.job(id)["Partition"]; p == "slurmbridge" {
							t.Errorf("%s's job with %v ran in %s", user, args, p)
						}
					}
				}
			}
			all()
			r.kill()
			all()
			must.OK(t, os.Remove(r.GateFile)) // as after a boot without the bridge
			all()
		})
	}
}

// Where all_partitions runs behind job_submit.lua, the gate does without a partition of its own.
func TestGateWithoutAPartitionAmongAll(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{Options: slurmtest.Options{
		JobSubmit: "lua,all_partitions", Extra: []string{"EnforcePartLimits=ALL", "PartitionName=cpu Nodes=ALL"},
	}})
	for _, args := range [][]string{{"--time=5"}, {"--time=5", "--gres=gpu:1"}, {"--gres=gpu:shared"}} {
		r.reach("COMPLETED", r.any(ann, 0.1, args...))
	}
	r.share()
}

// A script of the site's refuses the change that makes jobs share, whatever its words and its error: after two tries
// the jobs run as they are, each with a GPU of its own, within seconds.
func TestASiteRefusesShares(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]string{
		"without a reason":  `return slurm.ERROR`,
		"with Slurm's own":  `return 2072`,
		"in several lines":  `slurm.log_user("shares are for\nInvalid job id specified for job 1") return slurm.ERROR`,
		"as if it was down": `return 1000`,
		"with a lua error":  `error("no")`,
		"by another change": `job.tres_per_node = "gres:mps:90" return rc`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{settings: settings{NoJoin: true}, site: `
function slurm_job_modify(job, rec, parts, uid)
   local rc = M.modify(job, rec, parts, uid)
   if job.tres_per_node and not job.tres_per_node:find("gpu") and not job.tres_per_node:find(":100") then ` + refusal + ` end
   return rc
end`})
			first := r.submit(ann, small, 30) // the GPU's, so that the next three have to share
			r.reach("RUNNING", first)
			ids := []string{r.submit(ann, small, 2), r.submit(ann, small, 2), r.submit(ann, small, 2)}
			r.scontrol("requeuehold", first)
			since := time.Now()
			r.reach("COMPLETED", ids...)
			t.Logf("all three have run %v after the GPU was idle", time.Since(since).Round(time.Second))
		})
	}
}

// Whatever else a site's plugins refuse, drop or set: sharers and jobs without a GPU run, and soon.
func TestASitesPlugins(t *testing.T) {
	t.Parallel()
	modify := func(what string) string {
		return `
function slurm_job_modify(job, rec, parts, uid)
   ` + what + `
   return M.modify(job, rec, parts, uid)
end`
	}
	for name, o := range map[string]options{
		"refuses dependencies":     {site: modify(`if job.dependency then return slurm.ERROR end`)},
		"drops dependencies":       {site: modify(`if job.dependency then job.dependency = rec.dependency end`)},
		"refuses nodes":            {site: modify(`if job.req_nodes then return 2072 end`)},
		"refuses admin comments":   {site: modify(`if job.admin_comment then return slurm.ERROR end`)},
		"refuses the gate's lease": {site: modify(`if rec.name == "` + job.GateName + `" then return slurm.ERROR end`)},
		"refuses everything":       {site: modify(`do return slurm.ERROR end`)},
		"sets features and an account": {site: `
function slurm_job_submit(job, parts, uid)
   job.features, job.account = "site", "everyone"
   return M.submit(job, parts, uid)
end`},
		"requires time limits": {Options: slurmtest.Options{JobSubmit: "lua,require_timelimit"}},
		"chooses partitions": {Options: slurmtest.Options{
			JobSubmit: "partition,lua",
			Extra:     []string{"PartitionName=cpu Nodes=ALL PriorityTier=5"},
		}},
		"translates PBS, and throttles": {Options: slurmtest.Options{JobSubmit: "pbs,lua,throttle"}},
		"logs submissions": {Options: slurmtest.Options{
			JobSubmit: "logging,defaults,lua",
			Extra:     []string{"EnforcePartLimits=ANY"},
		}},
		"filters on the command line": {Options: slurmtest.Options{Extra: []string{"CliFilterPlugins=user_defaults,syslog"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.quiet = true
			r := newRig(t, o)
			r.scontrol("update", "NodeName=n1", "AvailableFeatures=site", "ActiveFeatures=site")
			r.startOnly("") // some of them let no gate be
			since := time.Now()
			var ids []string
			for range 3 {
				ids = append(ids, r.submit(ann, small, 1, "--time=5"))
			}
			ids = append(ids, r.any(ann, 0.1, "--time=5"))
			r.reach("COMPLETED", ids...)
			t.Logf("all have run after %v; gate %q", time.Since(since).Round(time.Second), r.gate())
		})
	}
}
