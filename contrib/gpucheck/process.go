package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec" //nolint:depguard // the kernels' programs are run here, and nvcc and the MPS control program
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a kernel's program that runs.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan line // closed at its end
	stderr tail
	badErr error // what it printed that is no line; set before lines is closed
	once   sync.Once
	exited chan struct{}
	err    error         // how it ended; set before exited is closed
	grace  time.Duration // stopWithin
}

// stopWithin is how long a program gets to end on request, and again after SIGTERM: under MPS a
// client that is killed may end other clients.
const stopWithin = 5 * time.Second

// startProcess starts a program, in a process group of its own so that an
// interrupt from the terminal doesn't end it in the middle of a kernel.
func startProcess(argv, env []string) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), lines: make(chan line, 16), exited: make(chan struct{}), grace: stopWithin}
	p.cmd.Env, p.cmd.Stderr = env, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.follow(out)
	return p, nil
}

// follow hands on the program's lines, and waits for its end.
func (p *process) follow(out io.Reader) {
	defer close(p.exited)
	defer close(p.lines)
	sc := bufio.NewScanner(out)
	sc.Buffer(make([]byte, 4096), 4096)
	for sc.Scan() {
		l, err := parseLine(sc.Bytes())
		if err != nil {
			p.badErr = err
			break
		}
		p.lines <- l
	}
	p.badErr = errors.Join(p.badErr, sc.Err())
	_, _ = io.Copy(io.Discard, out) // or it would wait for a reader
	if err := p.cmd.Wait(); err != nil {
		p.err = fmt.Errorf("%w: %s", err, p.stderr.text())
	}
}

// start lets a program that is ready iterate.
func (p *process) start() error {
	_, err := io.WriteString(p.stdin, "\n")
	return err
}

// stop ends the program, if it still runs, and waits for that. Its lines are
// thrown away unless another goroutine reads them.
func (p *process) stop() error {
	p.hangUp()
	go func() {
		for range p.lines { //nolint:revive // reading continues it
		}
	}()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-p.exited:
			return p.err
		case <-time.After(p.grace):
			_ = syscall.Kill(-p.cmd.Process.Pid, sig) // gone by itself meanwhile
		}
	}
	<-p.exited
	return p.err
}

// hangUp signals to the program that it may end.
func (p *process) hangUp() { p.once.Do(func() { _ = p.stdin.Close() }) }

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
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %.2000s", err, strings.TrimSpace(out.String()+errs.String()))
	}
	return out.String(), nil
}

// found returns a program's path: as given, on the PATH, or in one of the folders.
// "" = there is none.
func found(name string, folders ...string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, f := range folders {
		if path, err := exec.LookPath(f + "/" + name); f != "" && err == nil {
			return path
		}
	}
	return ""
}

// tail keeps the last 2 KiB that are written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-2<<10):]
	return len(p), nil
}

// text is what was kept, on one line.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(t.buf), "?")), " ")
}
