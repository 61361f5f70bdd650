package e2e

import (
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
	ids := r.atOnce(2, func(int) string {
		return must.Get(r.Submit(t.Context(), ann, share, "--gres=gpu:shared", "--comment=app="+small))(t)
	})
	r.reach("COMPLETED", ids...)
	for _, id := range ids {
		said := string(must.Get(os.ReadFile(r.Path("out", id+".out")))(t))
		must.Equal(t, said, "served\nstill\n", "what job %s says of its MPS daemon", id)
	}
	r.until("the jobs' ends are noticed, and the bridge is woken", func() bool {
		left, err := os.ReadDir(r.Path("node", "jobs"))
		wake, _ := os.ReadFile(r.WakeFile)
		text := string(wake) // the last one's
		return err == nil && len(left) == 0 && (text == "end "+ids[0]+"\n" || text == "end "+ids[1]+"\n")
	})
	r.inService()
}
