package slurmtest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

//go:embed namespace.sh
var namespace string

// makeNamespace makes the mount namespace of the cluster's daemons where they need one.
func (c *Cluster) makeNamespace(ctx context.Context) error {
	o, driver := &c.Options, ""
	if o.Driver {
		driver = "driver"
	} else if o.Root == "" {
		return nil
	}
	const name = "namespace"
	argv, err := c.Prefix("")
	if err != nil {
		return err
	}
	argv = append(append(argv, "unshare", "--mount", "sh", "-c", namespace, name, c.Dir, o.Root, driver), o.Binds...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = c.Env()
	if err := c.serve(ctx, name, cmd, func() error {
		if said, err := os.ReadFile(c.Path("log", name+".out")); err != nil || string(said) != "ready\n" {
			return errors.Join(err, fmt.Errorf("it says %q", said))
		}
		return nil
	}); err != nil {
		return err
	}
	c.namespace = c.daemons[name].Process.Pid
	return nil
}

// Prefix is what goes before a command for it to see this cluster's Slurm from outside: nothing, or with Options.Root
// or Driver what enters their namespace. as is the user to become there, "" = none.
func (c *Cluster) Prefix(as string) ([]string, error) {
	var argv []string
	if c.Options.OneCPU {
		argv = append(argv, "taskset", "--cpu-list", "0")
	}
	if c.namespace == 0 {
		return argv, nil
	}
	argv = append(argv, "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", c.namespace))
	if as != "" {
		id, err := IDs(as)
		if err != nil {
			return nil, err
		}
		// With another user the kernel forgets what Keep has set: that it dies with the cluster.
		argv = append(argv, strings.Fields(fmt.Sprintf("setpriv --clear-groups --reuid=%d --regid=%d --pdeathsig=KILL",
			id.Uid, id.Gid))...)
	}
	return argv, nil
}
