package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The node has no GPU: what follows stands in for the driver, and is all that this test
// adds to what the README says. Where there is a card, none of it is needed.
const (
	simDir   = "/opt/gpusim"
	simState = "/var/lib/gpusim/state"
)

// dropIn sets the path of the simulated driver's library for the agent, and lets it write the
// simulation's state as it would write the card's device.
const dropIn = `[Service]
Environment=LD_LIBRARY_PATH=` + simDir + ` GPUSIM_STATE=` + simState + `
ReadWritePaths=/var/lib/gpusim
`

// driver makes, at boot as a driver does, the device node (in the container's own /dev,
// and behind it /dev/null's device) and the card.
const driver = `[Unit]
Description=simulated GPU
Before=slurmd.service gpuprof.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sh -ec 'rm -f /dev/nvidia0 ` + simState + `; mknod -m 666 /dev/nvidia0 c 1 3; mkdir -p /var/lib/gpusim; \
	` + simDir + `/gpusim init --state ` + simState + ` --scale SCALE --uuid-seed gpu1; chmod 666 ` + simState + `'
[Install]
WantedBy=multi-user.target
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
	if err := r.node.write("/etc/systemd/system/gpuprof.service.d/simulated.conf", dropIn, 0o644); err != nil {
		return err
	}
	unit := strings.ReplaceAll(driver, "SCALE", strconv.Itoa(scale))
	if err := r.node.write("/etc/systemd/system/simulated-gpu.service", unit, 0o644); err != nil {
		return err
	}
	return os.Symlink("../simulated-gpu.service", filepath.Join(r.node.dir, "etc/systemd/system/multi-user.target.wants/simulated-gpu.service"))
}
