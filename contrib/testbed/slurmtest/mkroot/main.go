// Command mkroot makes a root folder with another Debian release's Slurm in it, for
// slurmtest.Options.Root, or with -boot one of a machine that acceptance boots. It takes
// the packages from where this machine's own apt takes them, and does nothing where the
// folder is complete already. The release may be newer than this machine's debootstrap.
//
//	go run ./contrib/testbed/slurmtest/mkroot [-boot] [-suite trixie] FOLDER
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// packages are Slurm's daemons and commands, and munge's, which Slurm of 26.05 doesn't
// bring along; munged and MariaDB run outside. A machine that boots has bootPackages, too.
const (
	packages     = "slurmctld,slurmd,slurmdbd,slurm-client,munge"
	bootPackages = ",systemd-sysv,dbus,procps,iproute2,curl"
)

// done names the file that a complete root holds.
const done = ".slurmtest-root"

func main() {
	suite := flag.String("suite", "trixie", "Debian release to take Slurm from")
	boot := flag.Bool("boot", false, "with what a machine needs that boots")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: mkroot [-boot] [-suite trixie] FOLDER")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	include := packages
	if *boot {
		include += bootPackages
	}
	if err := mkroot(ctx, *suite, include, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "mkroot:", err)
		os.Exit(1)
	}
}

// mkroot makes the root in a folder next to the wanted one and renames it once it
// is whole, so that a root is there or it isn't. Two at once wait for each other.
func mkroot(ctx context.Context, suite, include, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("make cache folder: %w", err)
	}
	if parent, err = filepath.EvalSymlinks(parent); err != nil {
		return fmt.Errorf("make cache folder: %w", err)
	}
	dir = filepath.Join(parent, filepath.Base(dir))
	unlock, err := lock(dir + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	mark := fmt.Sprintf("%s %s\n", suite, include)
	if have, err := os.ReadFile(filepath.Join(dir, done)); err == nil && string(have) == mark {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("making a root folder takes root: run it with sudo")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return errors.New("debootstrap is missing: apt-get install debootstrap")
	}
	mirror, err := mirror(ctx)
	if err != nil {
		return err
	}
	fresh := dir + ".new"
	for _, old := range []string{dir, fresh} {
		if err := remove(old); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "mkroot: %s's Slurm from %s into %s (some minutes)\n", suite, mirror, dir)
	if err := debootstrap(ctx, suite, include, fresh, mirror); err != nil {
		return errors.Join(err, remove(fresh))
	}
	// What only an installation needs is most of the bytes; names are each machine's own.
	for _, junk := range []string{
		"var/cache/apt/*.bin", "var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*", "usr/share/doc/*", "usr/share/locale/*", "usr/share/man/*",
		"etc/hostname", "etc/resolv.conf",
	} {
		found, err := filepath.Glob(filepath.Join(fresh, junk))
		for _, path := range found {
			err = errors.Join(err, os.RemoveAll(path))
		}
		if err != nil {
			return fmt.Errorf("tidy root: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(fresh, done), []byte(mark), 0o644); err != nil {
		return fmt.Errorf("mark root: %w", err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		return fmt.Errorf("put root in place: %w", err)
	}
	return nil
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock root: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock root: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// scripts is where debootstrap has what it knows of each suite; newest is the one that
// Debian's development releases have in common.
const (
	scripts = "/usr/share/debootstrap/scripts"
	newest  = "sid"
)

// script is debootstrap's argument for a suite that is newer than debootstrap.
func script(scripts, suite string) []string {
	if _, err := os.Stat(filepath.Join(scripts, suite)); err == nil {
		return nil
	}
	return []string{newest}
}

// debootstrap fills dir. Its output is shown only where it fails.
func debootstrap(ctx context.Context, suite, include, dir, mirror string) error {
	args := []string{"--variant=minbase", "--include=" + include, suite, dir, mirror}
	cmd := exec.CommandContext(ctx, "debootstrap", append(args, script(scripts, suite)...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = append(os.Environ(), proxies(ctx)...)
	// debootstrap works in many processes: an interrupt must reach all of them.
	// Its mounts are private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		tail := said.Bytes()
		if log, err := os.ReadFile(filepath.Join(dir, "debootstrap", "debootstrap.log")); err == nil {
			tail = append(tail, log...)
		}
		_, _ = io.Copy(os.Stderr, bytes.NewReader(tail[max(0, len(tail)-4000):]))
		return fmt.Errorf("debootstrap %s: %w (its last words are above)", suite, err)
	}
	return nil
}

// mirror is where apt gets this machine's own Debian from.
func mirror(ctx context.Context) (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find the package mirror: %w", err)
	}
	codename := osRelease(string(release), "VERSION_CODENAME")
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("find the package mirror: apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		suite, uri, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && suite == codename && (strings.HasPrefix(uri, "http://") || strings.HasPrefix(uri, "https://") || strings.HasPrefix(uri, "file:")) {
			return uri, nil
		}
	}
	return "", fmt.Errorf("find the package mirror: apt knows none for %q", codename)
}

// osRelease is a value of /etc/os-release, "" where it isn't there.
func osRelease(text, key string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

// proxies are apt's, in the form in which debootstrap's wget takes them.
func proxies(ctx context.Context) []string {
	var env []string
	for _, scheme := range []string{"http", "https"} {
		out, err := exec.CommandContext(ctx, "apt-config", "dump", "--format", "%v%n", "Acquire::"+scheme+"::Proxy").Output()
		if v := strings.TrimSpace(string(out)); err == nil && v != "" && v != "DIRECT" {
			env = append(env, scheme+"_proxy="+v)
		}
	}
	return env
}

// remove removes a root folder, and refuses to where anything is mounted in it:
// what lies behind a mount isn't ours.
func remove(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if at := mountedIn(string(table), dir); at != "" {
		return fmt.Errorf("remove %s: something is mounted at %s: unmount it first", dir, at)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// mountedIn names a mount at or below dir in a table as of /proc/self/mountinfo,
// "" = there is none.
func mountedIn(table, dir string) string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if at := unescape.Replace(f[4]); at == dir || strings.HasPrefix(at, dir+"/") {
			return at
		}
	}
	return ""
}
