package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
)

// The node has no GPU: what follows stands in for the driver, and is all that this test
// adds to what the README says. Where there is a card, none of it is needed.
const (
	simDir   = "/opt/gpusim"
	simState = "/var/lib/gpusim/state"
)

// dropIn tells the agent where the simulated driver's library is, and lets it write the
// simulation's state as it would write the card's device.
const dropIn = `[Service]
Environment=LD_LIBRARY_PATH=` + simDir + ` GPUSIM_STATE=` + simState + `
ReadWritePaths=/var/lib/gpusim
`

// simulate puts the simulated driver onto the node: NVML, MPS, the applications.
func (r *rig) simulate() error {
	for from, to := range map[string]string{"gpusim": "gpusim", "lib/libnvidia-ml.so.1": "libnvidia-ml.so.1"} {
		body, err := os.ReadFile(filepath.Join(r.o.build, from))
		if err != nil {
			return err
		}
		if err := r.node.write(simDir+"/"+to, string(body), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
		if err := os.Symlink("gpusim", filepath.Join(r.node.dir, simDir, name)); err != nil {
			return err
		}
		wrapper := "#!/bin/sh\nexport GPUSIM_STATE=" + simState + "\nexec " + simDir + "/" + name + " \"$@\"\n"
		if err := r.node.write("/usr/bin/"+name, wrapper, 0o755); err != nil {
			return err
		}
	}
	return r.node.write("/etc/systemd/system/gpuprof.service.d/simulated.conf", dropIn, 0o644)
}

// plugCard makes the device node, in the container's own /dev and behind it /dev/null's
// device, and the simulated card, after the boot.
func (r *rig) plugCard(ctx context.Context) error {
	_, err := r.node.sh(ctx, "mknod -m 666 /dev/nvidia0 c 1 3\ninstall -d -m 755 /var/lib/gpusim\n"+
		simDir+"/gpusim init --state "+simState+" --scale "+strconv.Itoa(scale)+" --uuid-seed gpu1\nchmod 666 "+simState)
	return err
}
