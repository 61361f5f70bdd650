package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// One script in two folders, whose input is found by the folder: jobs of the large one don't share by what the small
// one took, and none runs out of memory. Jobs of the small one do share.
func TestOneScriptInTwoFolders(t *testing.T) {
	t.Parallel()
	r := newWorld(t, cluster.Setup{Policy: "dqn"})
	folder := func(name, mib string) func(int) string {
		dir := r.Path(name)
		must.OK(t, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "mem"), []byte(mib+"\n"), 0o644))
		return func(int) string {
			return r.submit(r.gpusim("alexnet --mem-mib $(cat mem)"), "--gres=gpu:shared", "--chdir="+dir)
		}
	}
	small, large := folder("small", "1500"), folder("large", "7000")
	r.reach("COMPLETED", small(0))
	r.until("a profile of what ran alone", func() bool {
		var list []struct{ User string }
		r.command(&list, "profiles", "list")
		return slices.Contains(list, struct{ User string }{ann})
	})
	alone := r.atOnce(3, large)
	r.reach("COMPLETED", alone...)
	r.reach("COMPLETED", r.atOnce(3, small)...)
	together := 0
	for _, g := range r.groups() {
		switch refs := g.refs(); {
		case len(refs) < 2:
		case slices.ContainsFunc(refs, func(id string) bool { return slices.Contains(alone, id) }):
			t.Errorf("jobs of the large folder share: %v", refs)
		case g.Complete:
			together++
		}
	}
	if together == 0 {
		t.Errorf("jobs of the small folder don't share: %+v", r.groups())
	}
}
