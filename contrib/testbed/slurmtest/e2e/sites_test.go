package e2e

import (
	"os"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// job_submit/all_partitions puts the gate's hidden partition, too, into the list of each job that names none. Behind it
// job_submit.lua takes that out again: all kinds of jobs run, whether the bridge is there or not.
func TestGateAmongAllPartitions(t *testing.T) {
	t.Parallel()
	for _, limits := range []string{"ALL", "ANY", "NO"} {
		t.Run(limits, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{settings: settings{GatePartition: "slurmbridge"}, Options: slurmtest.Options{
				JobSubmit: "job_submit/all_partitions,job_submit/lua", Extra: []string{
					"EnforcePartLimits=" + limits, "PartitionName=cpu Nodes=ALL",
					"PartitionName=slurmbridge Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1",
				},
			}})
			must.Equal(t, r.job(r.gate())["Partition"], "slurmbridge", "the gate's partition")
			all := func() {
				var ids []string
				for _, user := range []string{ann, "root"} {
					for _, args := range [][]string{{"--time=5"}, {"--time=5", "--gres=gpu:1"}, {"--gres=gpu:shared"}} {
						ids = append(ids, r.any(user, 0.1, args...))
					}
				}
				r.reach("COMPLETED", ids...)
				for i, id := range ids {
					if p := r.job(id)["Partition"]; p == "slurmbridge" {
						t.Errorf("job %d ran in %s", i, p)
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

// A script of the site's refuses the change that makes jobs share, in words that look like another error: after two
// tries the jobs run as they are, each with a GPU of its own. What becomes of other errors is the loop's to show.
func TestASiteRefusesShares(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{site: `
function slurm_job_modify(job, rec, parts, uid)
   local rc = M.modify(job, rec, parts, uid)
   if job.tres_per_node and not job.tres_per_node:find("gpu") and not job.tres_per_node:find(":100") then
      slurm.log_user("shares are for\nInvalid job id specified for job 1")
      return slurm.ERROR
   end
   return rc
end`})
	r.reach("COMPLETED", r.atOnce(3, func(int) string { return r.submit(ann, small, 2) })...)
	if !r.logged(cluster.BridgeDaemon, "Unspecified error") {
		t.Error("the log says nothing of the refusal")
	}
}

// Whatever plugins a site has, of Slurm's and of its own: sharers and jobs without a GPU run.
func TestASitesPlugins(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{
		"refuses everything": {site: `function slurm_job_modify() return slurm.ERROR end`},
		"sets features and an account": {site: `
function slurm_job_submit(job, parts, uid)
   job.features, job.account = "site", "everyone"
   return M.submit(job, parts, uid)
end`},
		"requires time limits": {Options: slurmtest.Options{JobSubmit: "lua,require_timelimit"}},
		"chooses partitions": {Options: slurmtest.Options{
			JobSubmit: "partition,lua", Extra: []string{"PartitionName=cpu Nodes=ALL PriorityTier=5"},
		}},
		"translates PBS, throttles and logs": {Options: slurmtest.Options{
			JobSubmit: "pbs,logging,defaults,lua,throttle",
			Extra:     []string{"EnforcePartLimits=ANY", "CliFilterPlugins=user_defaults,syslog"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.quiet = true
			r := newRig(t, o)
			r.scontrol("update", "NodeName=n1", "AvailableFeatures=site", "ActiveFeatures=site")
			r.startOnly("") // one of them lets no gate be
			ids := []string{r.any(ann, 0.1, "--time=5")}
			for range 3 {
				ids = append(ids, r.submit(ann, small, 1, "--time=5"))
			}
			r.reach("COMPLETED", ids...)
		})
	}
}
