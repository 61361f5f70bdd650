package nvidia

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A driver's folder has what the other tests look for in it.
func TestFetched(t *testing.T) {
	for _, d := range Fetched(t) {
		for _, path := range []string{
			d.Control(), filepath.Join(d.Libraries(t), "libnvidia-ml.so.1"), filepath.Join(d.Libraries(t), "libcuda.so.1"),
		} {
			must.OK(t, must.Err(os.Stat(path)))
		}
	}
}
