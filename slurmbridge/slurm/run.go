package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Bounds on the output of one command, in bytes.
const (
	maxOutput = 256 << 20
	maxStderr = 64 << 10
)

// CommandError is the failure of one of Slurm's commands. errors.Is finds its Kind.
type CommandError struct {
	Command string // e.g. "scontrol update"
	Code    int    // exit status, -1 = none
	Stderr  string // shortened, on one line
	Kind    error  // job.ErrDown, job.ErrRefused or job.ErrNoJob
}

// Error returns the command, the kind of failure, and standard error.
func (e *CommandError) Error() string {
	msg := e.Command + ": " + e.Kind.Error()
	if e.Stderr != "" {
		msg += ": " + e.Stderr
	}
	return msg
}

// Unwrap returns the error's kind.
func (e *CommandError) Unwrap() error { return e.Kind }

// errLimit is the error of a command that prints too much, errNoAnswer of one that hangs.
var (
	errLimit    = errors.New("too much output")
	errNoAnswer = fmt.Errorf("%w in time", job.ErrDown)
)

// limited collects up to max bytes; a write beyond them fails.
type limited struct {
	buf  *bytes.Buffer
	max  int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.buf.Len()+len(p) > l.max {
		l.over = true
		return 0, errLimit
	}
	return l.buf.Write(p)
}

// head collects the first max bytes and drops the rest.
type head struct {
	buf bytes.Buffer
	max int
}

func (h *head) Write(p []byte) (int, error) {
	if n := min(len(p), h.max-h.buf.Len()); n > 0 {
		h.buf.Write(p[:n])
	}
	return len(p), nil
}

type command struct {
	name  string   // in errors and metrics; "" = the program, with scontrol's first words: "scontrol update"
	prog  string   // squeue, scontrol, sbatch, scancel
	args  []string // no shell sees them
	env   []string // added to the clean environment
	stdin string
	out   *bytes.Buffer // nil = a new buffer
	max   int           // bytes of output; 0 = maxOutput
	mark  string        // the end of each field, if fields are to be cut off at text.MostOfField; "" = read all
}

// run runs a command with a clean environment, in its own process group, which is killed after c.Timeout. It returns
// the output even if the command fails; the error is a *CommandError, or ctx's.
func (c *Client) run(ctx context.Context, cmd command) (out []byte, stderr string, err error) {
	if cmd.name == "" {
		cmd.name = cmd.prog
		for _, arg := range cmd.args {
			if cmd.prog == "scontrol" && verb.MatchString(arg) {
				cmd.name += " " + arg
			}
		}
	}
	started := time.Now()
	if c.Observe != nil {
		defer func() { c.Observe(cmd.name, time.Since(started), err) }()
	}
	runCtx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	argv := append(slices.Clone(c.Prefix), filepath.Join(c.bin, cmd.prog))
	argv = append(argv, cmd.args...)
	p := exec.CommandContext(runCtx, argv[0], argv[1:]...)
	p.Env = append(c.environ(), cmd.env...)
	p.Dir = "/"
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Cancel = func() error { return syscall.Kill(-p.Process.Pid, syscall.SIGKILL) }
	p.WaitDelay = c.Timeout // on a busy machine the command may have ended long before its output is read
	if cmd.stdin != "" {
		p.Stdin = strings.NewReader(cmd.stdin)
	}
	if cmd.out == nil {
		cmd.out = new(bytes.Buffer)
	}
	cmd.out.Reset()
	if cmd.max == 0 {
		cmd.max = maxOutput
	}
	said := head{max: maxStderr}
	printed := limited{buf: cmd.out, max: cmd.max}
	p.Stdout, p.Stderr = &printed, &said
	var fields *text.Bounded
	if cmd.mark != "" {
		fields = text.NewBounded(&printed, cmd.mark)
		p.Stdout = fields
	}
	err = p.Run()
	if fields != nil {
		err = errors.Join(err, fields.Close())
	}
	out = cmd.out.Bytes()
	stderr = said.buf.String()
	if err == nil {
		return out, stderr, nil
	}
	if ctx.Err() != nil {
		return out, stderr, fmt.Errorf("%s: %w", cmd.name, ctx.Err())
	}
	ce := &CommandError{Command: cmd.name, Code: -1, Stderr: text.OneLine(stderr)}
	var exit *exec.ExitError
	switch {
	case printed.over: // whatever ended the command, usually SIGPIPE
		return out, stderr, fmt.Errorf("%s: %w", cmd.name, errLimit)
	case runCtx.Err() != nil:
		ce.Kind = errNoAnswer
		ce.Stderr = fmt.Sprintf("no answer within %v", c.Timeout)
	case errors.As(err, &exit):
		ce.Code = exit.ExitCode()
		ce.Kind = text.ErrorKind(stderr)
		if incomplete(ce.Code) {
			ce.Kind = job.ErrDown
			ce.Stderr = strings.TrimSpace(exit.String() + " " + ce.Stderr)
		}
	default: // the program could not be started
		return out, stderr, fmt.Errorf("%s: %w: %w", cmd.name, job.ErrDown, err)
	}
	return out, stderr, ce
}

// incomplete reports whether a command with this exit status did not run to its end, so Slurm has refused nothing: a
// signal killed it (-1, or 128 and more from a wrapper), or it could not start (126, 127), as while Slurm is upgraded.
func incomplete(status int) bool { return status < 0 || status >= 126 && status < 128+65 }

var verb = regexp.MustCompile(`^[a-z_]+$`)

func (c *Client) ask(ctx context.Context, prog string, args ...string) ([]byte, error) {
	out, _, err := c.run(ctx, command{prog: prog, args: args})
	return out, err
}

// environ is the clean environment of Slurm's commands, because variables such as SLURM_TIME_FORMAT, SQUEUE_FORMAT or
// SBATCH_PARTITION would change what they do.
func (c *Client) environ() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s",
	}
	if c.Conf != "" {
		env = append(env, "SLURM_CONF="+c.Conf)
	}
	return env
}
