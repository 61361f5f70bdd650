package slurmtest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// powerPipe is where Slurm's power saving says which nodes to switch: "power-up n[1-2]".
func (c *Cluster) powerPipe() string { return c.Path("run", "power") }

// preparePower writes the programs by which Slurm, as its own user, switches nodes.
func (c *Cluster) preparePower() (err error) {
	o := &c.Options
	for _, program := range []string{o.suspend(), o.resume()} {
		path := strings.ReplaceAll(program, "DIR", c.Dir)
		text := fmt.Sprintf("#!/bin/sh\necho \"${0##*/} $1\" >%s\n", c.powerPipe())
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o755))
	}
	id, e := IDs("slurm")
	if err = errors.Join(err, e); err != nil {
		return err
	}
	return errors.Join(syscall.Mkfifo(c.powerPipe(), 0o600), os.Chown(c.powerPipe(), int(id.Uid), int(id.Gid)))
}

// suspend and resume are SuspendProgram and ResumeProgram, "" = none.
func (o *Options) suspend() string { return o.power("power-down") }
func (o *Options) resume() string  { return o.power("power-up") }

func (o *Options) power(name string) string {
	if !o.PowerSaving {
		return ""
	}
	return "DIR/" + name
}

// boot is how long a node takes to boot: Slurm counts in whole seconds, takes a slurmd to be a second old at least, and
// passes over one that registers before Slurm asked for the node.
const boot = 2 * time.Second

// servePower starts and ends nodes' slurmds as Slurm's power saving says, until the cluster is closed.
func (c *Cluster) servePower() error {
	pipe, err := os.OpenFile(c.powerPipe(), os.O_RDWR, 0) // with a writer of its own it has no end
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.claims = append(c.claims, pipe)
	c.mu.Unlock()
	go func() {
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			program, list, _ := strings.Cut(lines.Text(), " ")
			names := hostlist.Names(list)
			if program == "power-up" {
				time.Sleep(boot)
			}
			for i := range c.Options.Nodes {
				if !slices.Contains(names, NodeName(i)) {
					continue
				}
				c.KillNode(i)
				if program == "power-up" {
					_ = c.startNode(i, "-b") // a cluster that is closed starts none
				}
			}
		}
	}()
	return nil
}
