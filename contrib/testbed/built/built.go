// Package built provides tests with the project's programs.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Library is the name of the simulated GPU's NVML, as the binding looks for it.
const Library = "libnvidia-ml.so.1"

const module = "github.com/slurmbridge/slurmbridge/"

// packages are the programs' sources, in the module.
var packages = map[string]string{
	"gpusim":           "contrib/testbed/gpusim/cmd/gpusim",
	"gpuprof":          "gpuprof/cmd/gpuprof",
	"slurmbridge":      "slurmbridge/cmd/slurmbridge",
	"slurmbridge-hook": "prolog/cmd/slurmbridge-hook",
}

// Into is Copy from $SLURMBRIDGE_BUILD, where `make build` has just made them all.
func Into(dir string, names ...string) error {
	return Copy(os.Getenv("SLURMBRIDGE_BUILD"), dir, names...)
}

// Copy puts programs, or the Library, into a folder; gpusim goes by the names of NVIDIA's MPS programs as well. made is
// the folder where `make build` has made them; "" = they are compiled here. This process writes none: what a child that
// is being forked has open for writing can't be run ("text file busy").
func Copy(made, dir string, names ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		to := filepath.Join(dir, name)
		var cmd *exec.Cmd
		switch {
		case made != "" && name == Library:
			cmd = exec.Command("install", filepath.Join(made, "lib", name), to)
		case made != "":
			cmd = exec.Command("install", filepath.Join(made, name), to)
		case name == Library:
			cmd = exec.Command("sh", "-c", `exec "$(go list -f '{{.Dir}}' "$0")/nvmlsim/build" "$1"`,
				module+"contrib/testbed/gpusim", to)
		default:
			cmd = exec.Command("go", "build", "-o", to, module+packages[name])
			if name != "gpuprof" { // static, as it is installed: it runs in any root folder
				cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, out)
		}
		if name != "gpusim" {
			continue
		}
		for _, other := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
			if err := os.Symlink(name, filepath.Join(dir, other)); err != nil {
				return err
			}
		}
	}
	return nil
}
