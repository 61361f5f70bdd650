package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

const etc = "../../../../etc"

// etcHooks returns what installs etc/hooks in a cluster of nodes with so many simulated GPUs, and no bridge.
func etcHooks(nodeGPUs ...int) func(*slurmtest.Cluster) error {
	return cluster.New(cluster.Setup{Build: build, Lua: ours, Hooks: true, NodeGPUs: nodeGPUs}).Options().Prepare
}

// fragment reads a fragment of slurm.conf: NAME=value lines, without comments.
func fragment(t *testing.T, file string) (lines []string) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(etc, file)))(t)
	for line := range strings.Lines(string(text)) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// The files of etc, as a site would install them, are all a cluster needs: jobs
// share a GPU, its MPS daemon is there for them and gone afterwards.
func TestFilesOfEtc(t *testing.T) {
	t.Parallel()
	o := options{}
	o.Prepare = etcHooks(1)
	for _, line := range fragment(t, "slurm.conf.slurmbridge") {
		switch name, value, _ := strings.Cut(line, "="); name {
		case "SchedulerParameters":
			o.Scheduler = value
		case "Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld", // with the cluster's paths
			"GresTypes", "SelectType", "SelectTypeParameters", "DefMemPerCPU", "JobSubmitPlugins", "NodeName": // slurmtest's own
		default:
			o.Extra = append(o.Extra, line)
		}
	}
	r := newRig(t, o)
	script := fmt.Sprintf("env >%[1]s/$SLURM_JOB_ID.env\nls -a $CUDA_MPS_PIPE_DIRECTORY "+
		">%[1]s/$SLURM_JOB_ID.pipe\nsleep 2\n", r.Path("out"))
	var ids []string
	r.unseen(func() {
		for range 2 {
			ids = append(ids, must.Get(r.Submit(t.Context(), ann, script, "--gres=gpu:shared", "--comment=app="+small))(t))
		}
	})
	for _, id := range ids {
		r.reach("COMPLETED", id)
		vars, _ := os.ReadFile(r.Path("out", id+".env"))
		if !strings.Contains(string(vars), "CUDA_MPS_PIPE_DIRECTORY="+r.Path("node", "mps", "gpu0", "pipe")+"\n") {
			t.Errorf("job %s has no MPS daemon: %s", id, vars)
		}
		pipe, _ := os.ReadFile(r.Path("out", id+".pipe"))
		if !strings.Contains(string(pipe), "control") {
			t.Errorf("nobody serves job %s's pipe: %s", id, pipe)
		}
	}
	r.until("the jobs' ends are noticed, and the bridge is woken", func() bool {
		left, err := os.ReadDir(r.Path("node", "jobs"))
		wake, _ := os.ReadFile(r.WakeFile)
		text := string(wake) // the last one's
		return err == nil && len(left) == 0 && (text == "end "+ids[0]+"\n" || text == "end "+ids[1]+"\n")
	})
	r.inService()
}
