package nvidia

import (
	"os"
	"path/filepath"
	"testing"
)

// A driver's folder has what the other tests look for in it.
func TestFetched(t *testing.T) {
	for _, d := range Fetched(t) {
		for _, path := range []string{
			d.Control(), filepath.Join(d.Libraries(t), "libnvidia-ml.so.1"), filepath.Join(d.Libraries(t), "libcuda.so.1"),
		} {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("driver %s: %v", d.Name, err)
			}
		}
	}
}
