// Package mps is the simulated GPU's Multi-Process Service: a control daemon that answers as
// nvidia-cuda-mps-control, the server process that it starts, and the client's side, which
// applications call.
//
// It keeps the rules of NVIDIA's manual: a pipe directory with a control socket, a server per user
// started when that user's first client arrives, one user's server at a time (a client of another
// user waits until the present server's clients have gone; only with -multiuser-server, from Volta
// on, do users share one), 16 clients at most before Volta, and faults that reach every client of a
// server. What the daemon answers, logs and leaves behind is what NVIDIA's own of the machine's driver was seen to
// (contrib/testbed/nvidia holds the transcripts). What goes over its socket is the simulator's own: no real CUDA
// program can talk to it.
//
// A client stays connected to the daemon for as long as it lives; the socket carries lines of text.
// Server and clients have their places on the GPUs in the state file: a server that dies, and a
// kernel that faults, ends its clients there.
//
//	client ──────── client, fault ─► daemon: welcome PID UUIDS | refused; faulted
//	control program ─── COMMAND ───► daemon: its answer, and the end of the connection
//	daemon ──── exit | fault ──────► server: ready | why not
package mps

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// CUDA's environment variables for MPS.
const (
	PipeEnv     = "CUDA_MPS_PIPE_DIRECTORY"
	LogEnv      = "CUDA_MPS_LOG_DIRECTORY"
	VisibleEnv  = "CUDA_VISIBLE_DEVICES"
	ThreadsEnv  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	MemLimitEnv = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// InitEnv is how long a server takes to initialise its GPUs, as a driver without persistence mode has it take; default
// 0.
const InitEnv = "GPUSIM_MPS_INIT"

const (
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
	controlSock = "control"
	pidFile     = controlName + ".pid"
	network     = "unixpacket" // messages keep their bounds: SOCK_SEQPACKET
	// noProgram is the argument of what runs in place of a server that isn't there.
	noProgram = "no such program"
)

// Main is the program under its NVIDIA names; it returns the exit status. ok is
// false when args[0] is neither of them.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (status int, ok bool) {
	var err error
	switch filepath.Base(args[0]) {
	case serverName:
		if slices.Contains(args, noProgram) {
			return 1, true
		}
		err = runServer(stdin, stdout)
	case controlName:
		err = control(args[1:], stdin, stdout, stderr)
	default:
		return 0, false
	}
	if err != nil {
		if err.Error() != "" {
			fmt.Fprintln(stderr, err)
		}
		return 1, true
	}
	return 0, true
}

func control(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet(controlName, flag.ContinueOnError)
	f.SetOutput(stderr)
	background := f.Bool("d", false, "start the control daemon in the background")
	foreground := f.Bool("f", false, "start the control daemon in the foreground")
	multiuser := f.Bool("multiuser-server", false, "one server for all users (Volta and later)")
	// A driver that doesn't know the flag takes the whole command line for none.
	if knows, err := knowsMultiuser(); err != nil {
		return err
	} else if !knows && len(args) > 1 {
		c, err := dial(pipeDir(os.Getenv))
		if err != nil {
			return errNoControl
		}
		_ = c.Close()
		return ask(stdin, stdout)
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case *background:
		return spawn(*multiuser)
	case *foreground:
		rename(controlName)
		return runDaemon(*multiuser, func() { fmt.Fprintln(stdout, "ready") })
	}
	return ask(stdin, stdout)
}

// knowsMultiuser reports whether the driver's control daemon has -multiuser-server: that of 555 does, that of 550 does
// not.
func knowsMultiuser() (bool, error) {
	st, err := gpusim.Open("")
	if err != nil {
		return false, err
	}
	defer st.Close()
	return st.Driver() >= 555, nil
}

// rename gives the process its name in ps and top: it was started through
// /proc/self/exe.
func rename(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// errNoControl is what the control program says when no daemon answers it.
var errNoControl = errors.New("Cannot find MPS control daemon process") //nolint:revive,staticcheck // the real program's words

// ask sends the lines of standard input to the daemon, each on a connection of its own, and prints the answers.
func ask(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewScanner(stdin)
	for in.Scan() {
		c, err := dial(pipeDir(os.Getenv))
		if err != nil {
			return errNoControl
		}
		defer c.Close()
		_, err = fmt.Fprintln(c, in.Text())
		if _, rerr := io.Copy(stdout, c); errors.Join(err, rerr) != nil {
			return errNoControl
		}
	}
	return in.Err()
}

// spawn starts the daemon in a session of its own and returns when it answers, or with its reason not to.
func spawn(multiuser bool) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// A prolog's descriptors would otherwise stay open for the daemon's whole life.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "-f")
	if multiuser {
		cmd.Args = append(cmd.Args, "-multiuser-server")
	}
	cmd.Args[0], cmd.Stdout, cmd.Stderr = controlName, w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return err
	}
	word, _ := bufio.NewReader(r).ReadString('\n')
	if word != "ready\n" {
		_ = cmd.Wait() // its reason is the word
		return errors.New(strings.TrimSpace(word))
	}
	return cmd.Process.Release()
}

// runServer is the server's process: it takes its place on each of its GPUs until the daemon ends it.
func runServer(stdin io.Reader, stdout io.Writer) error {
	rename(serverName)
	st, err := gpusim.Open("")
	if err != nil {
		fmt.Fprintln(stdout, err)
		return err
	}
	defer st.Close()
	// Started as if by a driver without persistence mode: the daemon's end doesn't shorten it.
	if init, err := time.ParseDuration(os.Getenv(InitEnv)); err == nil {
		time.Sleep(init)
	}
	all := visible(st)
	if len(all) == 0 {
		fmt.Fprintln(stdout, "no CUDA-capable device is detected")
		return errSilent
	}
	for _, d := range all {
		s, err := d.ClaimServer(gpusim.Claimant{UID: os.Getuid(), Instance: d.Instance})
		if err != nil {
			fmt.Fprintf(stdout, "GPU %s: %v\n", d.Name(), err)
			return err
		}
		defer func() { _ = s.Release() }()
	}
	unshare, err := shareMemory(os.Getpid())
	if err != nil {
		fmt.Fprintln(stdout, err)
		return err
	}
	defer unshare()
	fmt.Fprintln(stdout, "ready")
	word, err := bufio.NewReader(stdin).ReadString('\n')
	switch {
	case err != nil: // the daemon is gone; the present clients may finish
		for st.Clients(os.Getpid()) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	case word == "fault\n":
		return errors.New("fatal fault")
	}
	return nil
}

// visible are the GPUs and instances that this process may use.
func visible(st *gpusim.State) []gpusim.Part {
	v, set := os.LookupEnv(VisibleEnv)
	return st.Visible(v, set, nil)
}

// What Connect answers.
var (
	// ErrNoDaemon: no control daemon answers at the pipe directory. A CUDA program then runs without MPS.
	ErrNoDaemon = errors.New("no MPS control daemon")
	// ErrRefused is CUDA's message to a client that gets no server.
	ErrRefused = errors.New("MPS client failed to connect to the MPS control daemon or the MPS server " +
		"(cudaErrorMpsConnectionFailed)")
)

// Client is a CUDA program's connection to its MPS server.
type Client struct {
	Server  int      // the server's pid
	Devices []string // UUIDs of the GPUs the server has, in its order

	daemon  *net.UnixConn
	answers *bufio.Reader
}

// ownGreeting is how NVIDIA's own control daemon begins.
const ownGreeting = "OUTBHELL"

// Connect connects to the MPS server through the control daemon of the pipe directory that getenv
// names, and waits until the daemon lets it in. It returns ErrNoDaemon, ErrRefused or ctx's error.
func Connect(ctx context.Context, getenv func(string) string) (*Client, error) {
	daemon, err := dial(pipeDir(getenv))
	if err != nil {
		return nil, ErrNoDaemon
	}
	defer context.AfterFunc(ctx, func() { _ = daemon.Close() })()
	c := &Client{daemon: daemon, answers: bufio.NewReader(daemon)}
	_, _ = fmt.Fprintln(daemon, "client") // if that fails, so does what follows
	// NVIDIA's own control daemon greets first, and serves no simulated client.
	if greeting, _ := c.answers.Peek(len(ownGreeting)); string(greeting) == ownGreeting {
		_ = daemon.Close()
		return nil, ErrRefused
	}
	word, _ := c.answers.ReadString('\n')
	var devices string
	if n, _ := fmt.Sscanf(word, "welcome %d %s\n", &c.Server, &devices); n != 2 {
		_ = daemon.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, ErrRefused
	}
	if !sharesMemory(c.Server) {
		_ = daemon.Close()
		return nil, ErrRefused
	}
	c.Devices = strings.Split(devices, ",")
	return c, nil
}

// Fault reports that a kernel of this client has faulted, and waits until the daemon knows.
func (c *Client) Fault() {
	_, _ = fmt.Fprintln(c.daemon, "fault")
	_, _ = c.answers.ReadString('\n') // a daemon that is gone knows nothing
}

// Close leaves the server.
func (c *Client) Close() error { return c.daemon.Close() }

// pipeDir is the pipe directory of an environment.
func pipeDir(getenv func(string) string) string {
	return filepath.Clean(cmp.Or(getenv(PipeEnv), "/tmp/nvidia-mps"))
}

// dial connects to the daemon of a pipe directory.
func dial(dir string) (*net.UnixConn, error) {
	return net.DialUnix(network, nil, &net.UnixAddr{Name: filepath.Join(dir, controlSock), Net: network})
}
