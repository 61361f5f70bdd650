package slurmtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Command prepares a program to be run in the cluster's environment: one of Slurm's commands, or any other by its path.
// as is the user to run it as, "" = this process's. Users that every Debian has, such as nobody, games, news and man,
// are there under Options.Root too.
func (c *Cluster) Command(ctx context.Context, as, name string, args ...string) (*exec.Cmd, error) {
	path, err := findProgram(c.Options.Root, name)
	if err != nil {
		return nil, err
	}
	argv, err := c.Prefix(as)
	if err != nil {
		return nil, err
	}
	out := c.Path("out")
	if c.namespace > 0 {
		argv = append(argv, "env", "--chdir="+out)
	}
	argv = append(append(argv, path), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = c.Env(), out
	if c.namespace == 0 && as != "" {
		id, err := IDs(as)
		if err != nil {
			return nil, err
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id}
	}
	return cmd, nil
}

// Run runs one of Slurm's commands as root and returns what it printed.
func (c *Cluster) Run(ctx context.Context, name string, args ...string) (string, error) {
	return c.RunAs(ctx, "", name, args...)
}

// RunAs is Run as another user.
func (c *Cluster) RunAs(ctx context.Context, as, name string, args ...string) (string, error) {
	cmd, err := c.Command(ctx, as, name, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// Submit runs sbatch as a user with a script on standard input, and returns the job's number. A script without a #!
// line is a shell's. Output goes to out/ID.out in the cluster's folder unless args say otherwise.
func (c *Cluster) Submit(ctx context.Context, as, script string, args ...string) (string, error) {
	args = append([]string{"--parsable", "--output=" + c.Path("out", "%A.out")}, args...)
	cmd, err := c.Command(ctx, as, "sbatch", args...)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(script, "#!") {
		script = "#!/bin/sh\n" + script
	}
	cmd.Stdin = strings.NewReader(script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("sbatch %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	id, _, _ := strings.Cut(strings.TrimSpace(string(out)), ";")
	return id, nil
}

// Job returns the fields of `scontrol -d show job`, by name. A job that is gone has none.
func (c *Cluster) Job(ctx context.Context, ref string) (map[string]string, error) {
	out, err := c.Run(ctx, "scontrol", "-d", "show", "job", ref)
	if err != nil {
		if strings.Contains(out, "Invalid job id") {
			return map[string]string{}, nil
		}
		return nil, err
	}
	return Fields(out), nil
}

// Jobs is Job for all jobs, in the order of their numbers.
func (c *Cluster) Jobs(ctx context.Context) ([]map[string]string, error) {
	out, err := c.Run(ctx, "scontrol", "-d", "--all", "show", "job")
	if err != nil {
		return nil, err
	}
	var all []map[string]string
	for one := range strings.SplitSeq(out, "\n\n") {
		if f := Fields(one); f["JobId"] != "" {
			all = append(all, f)
		}
	}
	return all, nil
}

// free are the fields that end with their line, and not with a blank: users write them.
var free = []string{
	"JobName", "Comment", "AdminComment", "SystemComment", "SubmitLine", "WorkDir", "Command", "StdErr",
	"StdIn", "StdOut",
}

// Fields reads the fields of one job of `scontrol show job`, by name.
func Fields(out string) map[string]string {
	f := map[string]string{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		for line != "" {
			key, value, ok := strings.Cut(line, "=")
			if !ok {
				break
			}
			line = ""
			if !slices.Contains(free, key) {
				value, line, _ = strings.Cut(value, " ")
				line = strings.TrimSpace(line)
			}
			if _, twice := f[key]; !twice {
				f[key] = value
			}
		}
	}
	return f
}

// Wait polls until ok is true or the time is over, and reports which. The time is for an idle machine: on a busy one,
// where a poll takes long or the process isn't scheduled for a while, it is longer.
func Wait(ctx context.Context, d time.Duration, ok func() bool) bool {
	return wait(ctx, d, time.Second, ok, func() int64 { return 0 })
}

// Wait is the function Wait for what slurmctld knows: it polls soon after slurmctld has logged something. As not every
// change is logged, it also polls after pauses that grow to four seconds.
func (c *Cluster) Wait(ctx context.Context, d time.Duration, ok func() bool) bool {
	return wait(ctx, d, longestBlind, ok, c.logged)
}

// logged is how much slurmctld has logged, bytes.
func (c *Cluster) logged() int64 {
	info, err := os.Stat(c.Path("log", "slurmctld.log"))
	if err != nil {
		return 0
	}
	return info.Size()
}

// loggedOf returns a function that counts the times that slurmctld has logged something of a job, other than changes
// of its fields, which change no state.
func (c *Cluster) loggedOf(ref string) func() int64 {
	// An array's job is logged by both of its numbers: JobId=7_1(8).
	job := regexp.QuoteMeta(ref)
	names := regexp.MustCompile(`(JobId=` + job + `|\(` + job + `\))(\D|$)`)
	var read, found int64
	return func() int64 {
		if c.logged() <= read {
			return found
		}
		log, err := os.Open(c.Path("log", "slurmctld.log"))
		if err != nil {
			return found
		}
		defer log.Close()
		more, _ := io.ReadAll(io.NewSectionReader(log, read, math.MaxInt32))
		read += int64(len(more))
		for line := range bytes.Lines(more) {
			if names.Match(line) && !bytes.Contains(line, []byte("update_job: ")) {
				found++
			}
		}
		return found
	}
}

// longestBlind is how long it waits for something to be logged before it polls without that.
const longestBlind = 4 * time.Second

// wait polls until ok is true or d is over, after pauses that grow to longest; a poll is due early when news changes.
func wait(ctx context.Context, d, longest time.Duration, ok func() bool, news func() int64) bool {
	var waited, quiet time.Duration // in all, and since the last news
	seen := news()
	for {
		asked := time.Now()
		if ok() {
			return true
		}
		if waited > d || ctx.Err() != nil {
			return false
		}
		// Many tests run at once, and most of them ask a program of Slurm's: what takes long is asked rarely.
		asking := time.Since(asked)
		time.Sleep(max(50*time.Millisecond, min(8*asking, time.Second)))
		blind := min(quiet/2, 200*asking, longest)
		for news() == seen && time.Since(asked) < blind {
			time.Sleep(20 * time.Millisecond)
		}
		turn := min(time.Since(asked), max(blind, longestTurn))
		waited, quiet = waited+turn, quiet+turn
		if now := news(); now != seen {
			seen, quiet = now, 0
		}
	}
}

// longestTurn is as much of one turn of asking and pausing as counts: it takes longer on a busy machine.
const longestTurn = 600 * time.Millisecond

// WaitState waits until the job is in one of the states, and returns the state it was last seen in ("" = it is gone).
func (c *Cluster) WaitState(ctx context.Context, d time.Duration, ref string, states ...string) (string, bool) {
	last := ""
	ok := wait(ctx, d, longestBlind, func() bool {
		f, err := c.Job(ctx, ref)
		if err != nil {
			return false
		}
		last = f["JobState"]
		return slices.Contains(states, last)
	}, c.loggedOf(ref))
	return last, ok
}
