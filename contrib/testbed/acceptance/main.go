// Command acceptance boots two Debian machines by systemd-nspawn, a controller and a
// node with a simulated GPU, and follows the README's chapters "Use it" and "Run it" on
// them: the commands are read from the README. Then it pulls plugs. `make acceptance`
// calls it.
//
// Everything lives in namespaces of its own (processes, mounts, network): however this
// ends, the kernel clears away machines, network and mounts. What stays is the cached
// root folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // the run in its own namespaces is this program again
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// releases are Debian's: 12, 13, and the one in development.
var releases = []string{"bookworm", "trixie", "forky"}

type options struct {
	release string
	cache   string // where root folders are kept
	build   string // programs, and below packages/ and newer/ the packages
	keep    bool
	inside  string // in the namespaces: the control groups' name
	work    string // in the namespaces: an empty folder to mount on
}

func main() {
	var o options
	flag.StringVar(&o.release, "release", "bookworm", "Debian release: "+strings.Join(releases, ", "))
	flag.StringVar(&o.cache, "cache", ".cache/acceptance", "folder of the root folders")
	flag.StringVar(&o.build, "build", "build", "where make build put the programs, with packages in acceptance/old and acceptance/new")
	flag.BoolVar(&o.keep, "keep", false, "leave the machines running at the end, until Ctrl-C")
	flag.StringVar(&o.inside, "inside", "", "for its own use")
	flag.StringVar(&o.work, "work", "", "for its own use")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	do := outside
	if o.inside != "" {
		do = inside
	}
	err := do(ctx, o)
	if ctx.Err() != nil {
		err = errors.New("interrupted; machines, network and mounts are gone")
		if o.inside != "" {
			os.Exit(1)
		}
	}
	if errors.Is(err, errReported) {
		os.Exit(1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "acceptance:", err)
		os.Exit(1)
	}
}

// errReported is a failure that was printed already.
var errReported = errors.New("reported")

// outside makes the root folder, runs this program in namespaces of its own, and clears
// away what namespaces don't: control groups.
func outside(ctx context.Context, o options) error {
	if err := able(o); err != nil {
		return err
	}
	root, err := filepath.Abs(filepath.Join(o.cache, o.release))
	if err != nil {
		return err
	}
	mk := exec.CommandContext(ctx, "contrib/testbed/acceptance/root", o.release, root)
	mk.Stdout, mk.Stderr = os.Stdout, os.Stderr
	mk.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	mk.Cancel = func() error { return syscall.Kill(-mk.Process.Pid, syscall.SIGTERM) }
	if err := mk.Run(); err != nil {
		return fmt.Errorf("root folder: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	group := "slurmbridge-acceptance-" + strconv.Itoa(os.Getpid())
	defer dropGroups(group)
	work, err := os.MkdirTemp("", "slurmbridge-acceptance-")
	if err != nil {
		return err
	}
	// What is mounted on it is seen in there alone: out here it stays empty.
	defer os.Remove(work)
	in := exec.CommandContext(ctx, self, append([]string{"-inside", group, "-work", work}, os.Args[1:]...)...)
	in.Stdout, in.Stderr = os.Stdout, os.Stderr
	// The kernel ends all processes in there with its first process, and that with us.
	runtime.LockOSThread()
	in.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL, Setpgid: true,
	}
	in.Cancel = func() error { return in.Process.Signal(syscall.SIGTERM) }
	in.WaitDelay = 10 * time.Second
	if err := in.Start(); err != nil {
		return fmt.Errorf("start in its own namespaces: %w", err)
	}
	if o.keep {
		fmt.Printf("--keep: nsenter -t %d -m -p -n, then nsenter -a -t LEADER, leads onto a machine\n", in.Process.Pid)
	}
	var exit *exec.ExitError
	if err := in.Wait(); errors.As(err, &exit) {
		return errReported
	} else if err != nil {
		return err
	}
	return nil
}

// able says what is missing to begin at all.
func able(o options) error {
	if !slices.Contains(releases, o.release) {
		return fmt.Errorf("--release %s: there are %s", o.release, strings.Join(releases, ", "))
	}
	if os.Geteuid() != 0 {
		return errors.New("booting machines takes root: call sudo make acceptance")
	}
	for _, program := range []string{"systemd-nspawn", "nsenter", "ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: apt-get install systemd-container iproute2 util-linux", program)
		}
	}
	if len(cgroups()) == 0 {
		return errors.New("no control groups (cgroup2) are mounted here: systemd can't be booted")
	}
	for _, dir := range []string{"acceptance/old", "acceptance/new"} {
		if found, err := filepath.Glob(filepath.Join(o.build, dir, "*.deb")); err != nil || len(found) != 2 {
			return fmt.Errorf("%s holds %d packages, not two: call make acceptance", filepath.Join(o.build, dir), len(found))
		}
	}
	return nil
}
