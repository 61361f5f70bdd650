package drawn

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// In each case of testdata, which was drawn and shrunk, jobs fare as on plain Slurm. `testbed soak --case FILE` says
// more of one; seeds at random are drawn by hand, so that no change fails by the luck of a draw.
func TestCases(t *testing.T) {
	base := &cluster.Setup{Build: "../../../build", Lua: "../../job_submit.lua"}
	cluster.Require(t, base.Build)
	o := &options{base: base, parallel: 1, out: t.Output()}
	for _, file := range must.Get(filepath.Glob("testdata/*.json"))(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			c := must.Get(readCase(file))(t)
			r := must.Get(o.twice(t.Context(), c, os.Getenv("SLURMBRIDGE_TEST_ROOT")))(t)
			must.Equal(t, r.Skipped, "")
			for _, d := range r.unstated() {
				t.Error(&d)
			}
		})
	}
}
