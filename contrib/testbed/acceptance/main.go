// Command acceptance boots two Debian machines by systemd-nspawn, a controller and a
// node with a simulated GPU, and follows README.md and the pages of contrib/doc on
// them: the commands are read from there. Then it pulls plugs, and does it all again by
// the Ansible role. `make acceptance` calls it.
//
// Everything lives in namespaces of its own (processes, mounts, network), of which this is
// the first process: however it ends, the kernel clears away machines, network and mounts.
// What stays is the cached root folder, and of one that was killed its control groups
// until the next run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // programs are looked for
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// releases are Debian's: 12, 13, and the one in development.
var releases = []string{"bookworm", "trixie", "forky"}

// Folders, seen from where make is called.
const (
	roots    = ".cache/acceptance" // of root folders
	programs = "build"             // where make build put the programs, with packages in acceptance/old and acceptance/new
)

type options struct {
	release        string
	keep, playbook bool
}

func main() {
	var o options
	flag.StringVar(&o.release, "release", "bookworm", "Debian release: "+strings.Join(releases, ", "))
	flag.BoolVar(&o.keep, "keep", false, "leave the machines running at the end, until Ctrl-C")
	flag.BoolVar(&o.playbook, "playbook", false, "check the Ansible role only, not the pages")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := able(o)
	if err == nil {
		err = run(ctx, o)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; machines, network and mounts are gone")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "acceptance:", err)
		os.Exit(1)
	}
}

// able says what is missing to begin at all.
func able(o options) error {
	if !slices.Contains(releases, o.release) {
		return fmt.Errorf("--release %s: there are %s", o.release, strings.Join(releases, ", "))
	}
	if os.Geteuid() != 0 || os.Getpid() != 1 {
		return errors.New("booting machines takes root and namespaces of their own: call sudo make acceptance")
	}
	for _, program := range []string{"systemd-nspawn", "nsenter", "ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: apt-get install systemd-container iproute2 util-linux", program)
		}
	}
	if len(cgroups()) == 0 {
		return errors.New("no control groups (cgroup2) are mounted here: systemd can't be booted")
	}
	return nil
}

// step is one check.
type step struct {
	name string
	// needed: without it nothing that follows means anything.
	needed bool
	// do returns the message for a step that holds; check ends a step that doesn't.
	do func() string
}

// failure is the panic that ends a step, and only that step.
type failure struct{ error }

// check ends the step with an error, if there is one.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must is the value of a call that the step can't go on without.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// fail ends the step.
func fail(format string, args ...any) {
	check(fmt.Errorf(format, args...))
}

// attempt is what ended a function, nil = nothing.
func attempt(do func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				panic(p)
			}
			err = f.error
		}
	}()
	do()
	return nil
}

// because puts what went wrong in front of an error, if there is one.
func because(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// until repeats something until it holds, for at most limit. The last failure is the reason for giving up.
func (r *rig) until(limit time.Duration, do func()) {
	for end := time.Now().Add(limit); ; {
		err := attempt(do)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			check(because("after "+limit.String(), err))
		}
		select {
		case <-r.ctx.Done():
			check(r.ctx.Err())
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// longest bounds a step.
const longest = 10 * time.Minute

// runAll runs the steps, prints each as it goes, and reports whether all hold.
func (r *rig) runAll(all context.Context) bool {
	on, held, steps, began := true, 0, r.steps(), time.Now()
	for _, s := range steps {
		fmt.Printf("%4.0f s  %s … ", time.Since(began).Seconds(), s.name)
		if !on || all.Err() != nil {
			fmt.Println("not run")
			continue
		}
		at, detail := time.Now(), ""
		ctx, cancel := context.WithTimeout(all, longest)
		r.ctx = ctx
		err := attempt(func() { detail = s.do() })
		cancel()
		if r.ctx = all; err == nil {
			held++
			fmt.Printf("ok, %.1f s: %s\n", time.Since(at).Seconds(), detail)
			continue
		}
		on = !s.needed
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("took longer than %s: %w", longest, err)
		}
		fmt.Printf("FAILED: %v\n", err)
		r.keepLog(s.name, err)
	}
	fmt.Printf("%s: %d of %d checks hold, %.0f s\n", r.o.release, held, len(steps), time.Since(began).Seconds())
	return held == len(steps)
}

// keepLog appends the end of the machines' journals to a file next to the packages.
func (r *rig) keepLog(name string, err error) {
	path := filepath.Join(programs, "acceptance", r.o.release+".log")
	f, ferr := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if ferr != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "===== %s: %v\n", name, err)
	for _, m := range r.machines() {
		if m.leader == 0 {
			continue
		}
		out, _ := r.try(m, `journalctl --no-pager -n 60 -o short-precise
tail -n 30 /var/log/slurm/*.log
[ `+m.name+` = gpu1 ] || { squeue -o '%i %u %T %r %E %b'; sinfo -R; }`)
		fmt.Fprintf(f, "----- %s\n%s\n", m.name, out)
	}
	fmt.Printf("        the end of the machines' logs: %s\n", path)
}
