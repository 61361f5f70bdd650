// Package nvidia provides tests with NVIDIA's own programs and libraries of several drivers, fetched by contrib/nvidia.
// They run without a GPU: the MPS control daemon starts any program as its server, and NVML reports that no driver is
// loaded.
package nvidia

import (
	"os"
	"path/filepath"
	"testing"
)

// Drivers are the branches of the drivers that can be fetched, oldest first. The driver is the branch's last in Debian.
var Drivers = []string{"470", "535", "550", "555"}

// Driver is one driver's programs and libraries.
type Driver struct {
	Name   string // its branch, "535"
	folder string
}

// Fetched returns the drivers on this machine. Without any it skips the test and says so.
func Fetched(t testing.TB) (out []Driver) {
	t.Helper()
	for _, name := range Drivers {
		d := Driver{Name: name, folder: filepath.Join(folder(), name)}
		if info, err := os.Stat(d.folder); err == nil && info.IsDir() {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		t.Skipf("NOTHING WAS TESTED on NVIDIA's own programs: none are in %s (make nvidia)", folder())
	}
	return out
}

// folder is where `make nvidia` puts the drivers.
func folder() string {
	if set := os.Getenv("SLURMBRIDGE_NVIDIA"); set != "" {
		return set
	}
	here, err := os.Getwd() // a test runs in its package's folder
	for ; err == nil && here != "/"; here = filepath.Dir(here) {
		if _, err := os.Stat(filepath.Join(here, "go.mod")); err == nil {
			break
		}
	}
	return filepath.Join(here, ".cache/nvidia")
}

// Control is the path of nvidia-cuda-mps-control.
func (d Driver) Control() string { return filepath.Join(d.folder, "usr/bin/nvidia-cuda-mps-control") }

// Libraries is the folder with libnvidia-ml.so.1 and libcuda.so.1.
func (d Driver) Libraries(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(d.folder, "usr/lib/*/nvidia/current/libnvidia-ml.so.1"))
	if err != nil || len(found) != 1 {
		t.Fatalf("driver %s has %d libraries of NVML", d.Name, len(found))
	}
	return filepath.Dir(found[0])
}
