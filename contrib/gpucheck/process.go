package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec" //nolint:depguard // the kernels' programs are run here, and nvcc and the MPS control program
	"sort"
	"strings"
	"syscall"
	"time"
)

// line is one line that a kernel's program prints; kernels/harness.cuh says when.
type line struct {
	Work  float64 `json:"work"` // units of work in an iteration
	Rate  float64 `json:"rate"` // iterations a second
	Ready bool    `json:"ready"`
	Done  bool    `json:"done"`
	N     int64   `json:"n"`      // iterations so far
	At    float64 `json:"at"`     // on a clock that all programs share, s
	BusyS float64 `json:"busy_s"` // of their busy parts so far
	// At the end:
	MovedMB float64 `json:"moved_mb"` // over PCIe, both directions
	HeldMiB float64 `json:"held_mib"` // device memory
}

var errLine = errors.New("not a line of a kernel's program")

func parseLine(text []byte) (line, error) {
	var l line
	err := json.Unmarshal(text, &l)
	for _, v := range [...]float64{l.Work, l.Rate, float64(l.N), l.At, l.BusyS, l.MovedMB, l.HeldMiB} {
		if err != nil || !(v >= 0 && v < 1e15) {
			return line{}, fmt.Errorf("%w: %.80q", errLine, text)
		}
	}
	return l, nil
}

// process is a kernel's program that runs.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   io.ReadCloser
	lines *bufio.Scanner
	errs  bytes.Buffer
	end   context.CancelFunc
}

// stopWithin is how long a program gets to end on request before it is killed: under MPS a client that is killed may end
// other clients.
const stopWithin = 5 * time.Second

// startProcess starts a program, in a process group of its own so that an
// interrupt from the terminal doesn't end it in the middle of a kernel. The end of ctx ends it.
func startProcess(ctx context.Context, argv, env []string, grace time.Duration) (*process, error) {
	ctx, end := context.WithCancel(ctx)
	p := &process{cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), end: end}
	p.cmd.Env, p.cmd.Stderr, p.cmd.WaitDelay = env, &p.errs, grace
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		p.out, err = p.cmd.StdoutPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		end()
		return nil, err
	}
	p.lines = bufio.NewScanner(io.LimitReader(p.out, 64<<20))
	p.lines.Buffer(make([]byte, 4096), 4096)
	return p, nil
}

// next is the program's next line.
func (p *process) next() (line, error) {
	if !p.lines.Scan() {
		return line{}, errors.Join(errEarly, p.lines.Err())
	}
	return parseLine(p.lines.Bytes())
}

// start lets a program that is ready iterate, and hangUp signals to it that it may end.
func (p *process) start()  { _, _ = io.WriteString(p.stdin, "\n") } // one that has ended: its last line says why
func (p *process) hangUp() { _ = p.stdin.Close() }

// stop waits for the program's end, which it may delay for so long.
func (p *process) stop() error {
	p.hangUp()
	late := time.AfterFunc(p.cmd.WaitDelay, p.end)
	defer late.Stop()
	defer p.end()
	_, _ = io.Copy(io.Discard, p.out)
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %.2000s", err, strings.Join(strings.Fields(strings.ToValidUTF8(p.errs.String(), "?")), " "))
	}
	return nil
}

// environ is the environment of a kernel's program: this program's without what
// CUDA looks at, and what is given.
func environ(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CUDA_") {
			env = append(env, kv)
		}
	}
	return append(env, more...)
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, stdin string, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = env, strings.NewReader(stdin), time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %.2000s", err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// track is a kernel's progress: lines with counts and times that never fall.
type track []line

func (t *track) add(l line) error {
	if n := len(*t); n > 0 {
		if last := (*t)[n-1]; l.N < last.N || l.At < last.At || l.BusyS < last.BusyS {
			return fmt.Errorf("%w: it went backwards, from iteration %d at %v s to %d at %v s", errLine, last.N, last.At, l.N, l.At)
		}
	}
	*t = append(*t, l)
	return nil
}

// at returns how many iterations, and busy how many seconds of busy parts, a track that isn't empty had behind it at a
// moment, in between lines in proportion.
func (t track) at(moment float64) (done, busy float64) {
	i := sort.Search(len(t), func(i int) bool { return t[i].At >= moment })
	b := t[min(i, len(t)-1)]
	if i == 0 || i == len(t) || b.At == moment {
		return float64(b.N), b.BusyS
	}
	a := t[i-1]
	part := (moment - a.At) / (b.At - a.At)
	return float64(a.N) + part*float64(b.N-a.N), a.BusyS + part*(b.BusyS-a.BusyS)
}

// rates are the tracks' iterations a second while all of them iterated, without the first tenth of that time, in which
// clocks rise; from and to are that time.
func rates(tracks ...track) (out []float64, from, to float64, err error) {
	to = math.Inf(1)
	for _, t := range tracks {
		if len(t) == 0 {
			return nil, 0, 0, errEarly
		}
		from, to = max(from, t[0].At), min(to, t[len(t)-1].At)
	}
	from += (to - from) / 10
	for _, t := range tracks {
		a, _ := t.at(from)
		b, _ := t.at(to)
		if !(to > from) || b <= a {
			return nil, 0, 0, errEarly
		}
		out = append(out, (b-a)/(to-from))
	}
	return out, from, to, nil
}
