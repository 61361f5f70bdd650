// Package play starts a private real Slurm with the bridge and simulated Titan Xps, and opens a shell in which users
// and administrators can try everything. At the shell's end all of it ends, and nothing stays.
package play

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// instances are what --mig cuts each of two simulated A100s into.
var instances = []string{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"}

type options struct {
	cluster.Setup
	mig  bool
	root string   // of Slurm; "" = this machine's
	in   *os.File // of the shell
	out  io.Writer
	err  io.Writer
}

// Command is `testbed play`.
func Command(base *cluster.Setup) *cobra.Command {
	o := options{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	c := &cobra.Command{
		Use: "play", Short: "A private Slurm with the bridge and five simulated GPUs, to type into", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Build, o.Lua = base.Build, base.Lua
			return play(c.Context(), &o)
		},
	}
	c.Flags().Float64Var(&o.Scale, "scale", 3, "GPU seconds that pass in a second")
	c.Flags().StringVar(&o.Policy, "policy", "dqn", "the bridge's policy")
	c.Flags().BoolVar(&o.mig, "mig", false, "two A100s that are cut into MIG instances; Slurm 23.02.7 or later")
	c.Flags().StringVar(&o.root, "root", "", "a `FOLDER` with another Slurm, which contrib/mkroot makes")
	return c
}

var errOld = errors.New("only from 23.02.7 on Slurm shares MIG instances")

// play starts the cluster, and ends it at the end of the shell.
func play(ctx context.Context, o *options) error {
	fmt.Fprintln(o.err, "Starting a private Slurm (some seconds) ...")
	o.NodeGPUs = []int{1, 2, 2}
	if o.mig {
		release, err := slurmtest.ReleaseOf(ctx, o.root)
		if err != nil {
			return err
		}
		if !text.SharesInstances(release) {
			return fmt.Errorf("%w: this is %s; contrib/mkroot makes a folder for --root with another", errOld, release)
		}
		o.NodeGPUs, o.Models, o.Sharing = []int{1, 1}, []string{"a100", "a100"}, "shard"
		o.Card.Instances = instances
	}
	o.Adjust = func(so *slurmtest.Options) {
		so.Root = o.root
		so.Accounting = slurmtest.MissingAccounting(so.Root) == nil
	}
	s, err := cluster.Start(ctx, o.Setup)
	if err != nil {
		return err
	}
	return s.CloseAfter(ctx, open(ctx, s, o))
}

// open writes the jobs' scripts and lets the user type until the shell ends.
func open(ctx context.Context, s *cluster.Stack, o *options) error {
	dir := s.Path("play")
	if err := writeScripts(s, dir); err != nil {
		return err
	}
	greet(o, s, dir)
	argv, err := s.Prefix("")
	if err != nil {
		return err
	}
	argv = append(argv, "env", "--chdir="+dir, "bash")
	if term.IsTerminal(int(o.in.Fd())) {
		argv = append(argv, "--rcfile", filepath.Join(dir, "bin", "rc"), "-i")
	} else {
		argv = append(argv, "-s")
	}
	bash := exec.CommandContext(ctx, argv[0], argv[1:]...)
	bash.Dir, bash.Stdin, bash.Stdout, bash.Stderr = dir, o.in, o.out, o.err
	bash.Env = append(os.Environ(), "SLURM_CONF="+s.Conf(),
		"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
	err = bash.Run()
	if bash.ProcessState != nil {
		err = ctx.Err() // the shell's status is that of its last command
	}
	fmt.Fprintln(o.err, "Ending the private Slurm ...")
	return err
}

// writeScripts writes a job for each application, and commands that know where this cluster's files are.
func writeScripts(s *cluster.Stack, dir string) error {
	state := `s=` + s.State() + "\n" + `[ "$SLURMD_NODENAME" = n1 ] || s=$s-$SLURMD_NODENAME` + "\n"
	files := map[string]string{
		"bin/rc":          "PS1='play$ '\n",
		"bin/slurmbridge": fmt.Sprintf("exec %s --config %s \"$@\"\n", s.Bin("slurmbridge"), s.Path("slurmbridge.yaml")),
		"bin/as": "# as USER COMMAND...\nu=$1\nshift\n" +
			"exec setpriv --reuid=\"$u\" --regid=\"$(id -g \"$u\")\" --init-groups \"$@\"\n",
	}
	for i, n := range s.Nodes() {
		files["bin/gpus"] += fmt.Sprintf("echo %s\n%s smi --state %s\n", n, s.Bin("gpusim"), s.StateOf(i))
	}
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		minutes := int(math.Ceil(2*p.DurationS/s.Setup.Scale/60)) + 1
		files[name+".sh"] = fmt.Sprintf("#SBATCH --job-name=%s --time=%d --output=%s --comment=app=%[1]s\n%[4]s"+
			"export GPUSIM_STATE=$s\nexec %[5]s run %[1]s\n",
			name, minutes, s.Path("out", "%x-%j.out"), state, s.Bin("gpusim"))
	}
	err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755)
	for name, body := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755))
	}
	return err
}

// greet says what there is and what to type.
func greet(o *options, s *cluster.Stack, dir string) {
	var gpus []string
	for i, n := range s.Nodes() {
		gpus = append(gpus, fmt.Sprintf("%s (%d)", n, o.NodeGPUs[i]))
	}
	cards, whose := "Titan Xps", "a Titan Xp serves one user at a time"
	if o.mig {
		cards, whose = "A100s, cut into "+strings.Join(instances, ", ")+",", "an instance serves one user at a time"
	}
	accounting := "without accounting (contrib/install-deps --accounting installs what it needs)"
	if s.Cluster.Options.Accounting {
		accounting = "with accounting"
	}
	fmt.Fprintf(o.out, `
Slurm %s %s, the bridge with policy %s, and simulated %s on %s.
%g GPU seconds pass in a second.

  sbatch --gres=gpu:shared alexnet.sh      a job that may share a GPU
  sbatch --gres=gpu:1 alexnet.sh           a job with a GPU of its own
  as games sbatch --gres=gpu:shared gromacs.sh     another user's: %s
  for app in lammps gromacs hoomd alexnet qmcpack googlenet lammps gromacs; do sbatch --gres=gpu:shared $app.sh; done

  squeue    gpus    slurmbridge status    slurmbridge why JOB    slurmbridge usage    slurmbridge receipt
  %[8]s/ (the status page)    %[8]s/usage

Applications of the thesis, a script each: %[9]s.

Another terminal joins with:
  export SLURM_CONF=%[10]s PATH=%[11]s:$PATH; cd %[12]s

Ctrl-D ends everything and leaves nothing.

`, s.Release, accounting, o.Policy, cards, strings.Join(gpus, ", "), o.Scale, whose, s.URL,
		strings.Join(apps.Names(), " "), s.Conf(), filepath.Join(dir, "bin"), dir)
}
