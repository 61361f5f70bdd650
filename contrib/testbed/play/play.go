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
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// nodeGPUs are the simulated GPUs of each node.
var nodeGPUs = []int{1, 2, 2}

// instances are what --mig cuts each of two simulated A100s into.
var instances = []string{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"}

type options struct {
	base   *cluster.Setup
	mig    bool
	root   string // of Slurm; "" = this machine's
	scale  float64
	policy string
	in     *os.File // of the shell
	out    io.Writer
	err    io.Writer
}

// Command is `testbed play`.
func Command(base *cluster.Setup) *cobra.Command {
	o := options{base: base, in: os.Stdin, out: os.Stdout, err: os.Stderr}
	c := &cobra.Command{
		Use: "play", Short: "A private Slurm with the bridge and five simulated GPUs, to type into", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return play(c.Context(), o) },
	}
	c.Flags().Float64Var(&o.scale, "scale", 3, "GPU seconds that pass in a second")
	c.Flags().StringVar(&o.policy, "policy", "dqn", "the bridge's policy")
	c.Flags().BoolVar(&o.mig, "mig", false, "two A100s that are cut into MIG instances; Slurm 23.02.7 or later")
	c.Flags().StringVar(&o.root, "root", "", "a `FOLDER` with another Slurm, which contrib/mkroot makes")
	return c
}

var errOld = errors.New("only from 23.02.7 on Slurm shares MIG instances")

// play starts the cluster, and ends it at the end of the shell.
func play(ctx context.Context, o options) error {
	fmt.Fprintln(o.err, "Starting a private Slurm (some seconds) ...")
	setup := *o.base
	setup.Scale, setup.Policy, setup.NodeGPUs = o.scale, o.policy, nodeGPUs
	if o.mig {
		release, err := slurmtest.ReleaseOf(ctx, o.root)
		if err != nil {
			return err
		}
		if !text.SharesInstances(release) {
			return fmt.Errorf("%w: this is %s; contrib/mkroot makes a folder for --root with another", errOld, release)
		}
		setup.NodeGPUs, setup.Models, setup.Sharing = []int{1, 1}, []string{"a100", "a100"}, "shard"
		setup.Card.Instances = instances
	}
	setup.Adjust = func(so *slurmtest.Options) {
		so.Root = o.root
		so.Accounting = slurmtest.MissingAccounting(so.Root) == nil
	}
	s, err := cluster.Start(ctx, setup)
	if err != nil {
		return err
	}
	return s.CloseAfter(ctx, open(ctx, s, &o))
}

// open writes the jobs' scripts and lets the user type until the shell ends.
func open(ctx context.Context, s *cluster.Stack, o *options) error {
	dir := s.Path("play")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := writeScripts(s, dir, o.scale); err != nil {
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
	bash := exec.Command(argv[0], argv[1:]...)
	bash.Dir, bash.Stdin, bash.Stdout, bash.Stderr = dir, o.in, o.out, o.err
	bash.Env = append(os.Environ(), "SLURM_CONF="+s.Conf(), "PATH="+path(dir))
	if err = bash.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = bash.Wait() // the status is that of the last command
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		_ = bash.Process.Kill()
		<-ended
	}
	fmt.Fprintln(o.err, "Ending the private Slurm ...")
	return ctx.Err()
}

func path(dir string) string {
	return filepath.Join(dir, "bin") + ":" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
}

// writeScripts writes a job for each application, and commands that know where this cluster's files are.
func writeScripts(s *cluster.Stack, dir string, scale float64) error {
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	state := `s=` + s.State() + "\n" + `[ "$SLURMD_NODENAME" = n1 ] || s=$s-$SLURMD_NODENAME` + "\n"
	files := map[string]string{
		"bin/rc": "PS1='play$ '\n",
		"bin/slurmbridge": fmt.Sprintf("#!/bin/sh\nexec %s --config %s \"$@\"\n", s.Bin("slurmbridge"),
			s.Path("slurmbridge.yaml")),
		"bin/as": "#!/bin/sh\n# as USER COMMAND...\nu=$1\nshift\nexec setpriv --reuid=\"$u\" --regid=\"$(id -g \"$u\")\" " +
			"--init-groups \"$@\"\n",
		"bin/gpus": fmt.Sprintf("#!/bin/sh\nfor n in %s; do\n\techo \"$n\"\n\ts=%s\n\t[ $n = n1 ] || s=$s-$n\n\t%s smi "+
			"--state $s\ndone\n",
			strings.Join(s.Nodes(), " "), s.State(), s.Bin("gpusim")),
	}
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		minutes := int(math.Ceil(2*p.DurationS/scale/60)) + 1
		files[name+".sh"] = fmt.Sprintf("#!/bin/sh\n#SBATCH --job-name=%s --time=%d --comment=app=%s "+
			"--output=%s\n%sexport GPUSIM_STATE=$s\nexec %s run %s\n",
			name, minutes, name, s.Path("out", "%x-%j.out"), state, s.Bin("gpusim"), name)
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// greet says what there is and what to type.
func greet(o *options, s *cluster.Stack, dir string) {
	var gpus []string
	for i, n := range s.Nodes() {
		gpus = append(gpus, n+" ("+strconv.Itoa(s.Setup.NodeGPUs[i])+")")
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

`, s.Release, accounting, o.policy, cards, strings.Join(gpus, ", "), o.scale, whose, s.URL, strings.Join(apps.Names(), " "), s.Conf(), filepath.Join(dir, "bin"), dir)
}
