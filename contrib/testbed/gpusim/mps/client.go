package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// ErrNoDaemon says that no control daemon answers at the pipe directory. A CUDA program then runs
// without MPS.
var ErrNoDaemon = errors.New("no MPS control daemon")

// Client is a CUDA program's connection to its MPS server.
type Client struct {
	Server  int      // the server's pid
	Devices []string // UUIDs of the GPUs the server has, in its order

	daemon, server *net.UnixConn
	lost           chan error
}

// Connect connects to the MPS server through the control daemon of the pipe directory that getenv
// names, and waits until the daemon lets it in. It returns ErrNoDaemon, an *Error with CUDA's text,
// or ctx's error.
func Connect(ctx context.Context, getenv func(string) string) (*Client, error) {
	for {
		c, err := connect(ctx, pipeDir(getenv))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !errors.Is(err, errDied) {
			return c, err
		}
	}
}

// errDied says that the server has died before it took the client.
var errDied = errors.New("the server is gone")

func connect(ctx context.Context, dir string) (*Client, error) {
	daemon, err := dial(dir, controlSock)
	if err != nil {
		return nil, ErrNoDaemon
	}
	defer context.AfterFunc(ctx, func() { _ = daemon.Close() })()
	c := &Client{daemon: daemon, lost: make(chan error, 1)}
	r := bufio.NewReader(daemon)
	word, err := r.ReadString('\n')
	var devices string
	if n, _ := fmt.Sscanf(word, "welcome %d %s\n", &c.Server, &devices); err != nil || n != 2 {
		_ = daemon.Close()
		return nil, failure(CodeConnectionFailed)
	}
	c.Devices = strings.Split(devices, ",")
	if c.server, err = dial(dir, serverSock); err != nil {
		_ = daemon.Close()
		return nil, errDied
	}
	s := bufio.NewReader(c.server)
	if word, err = s.ReadString('\n'); err != nil || word != fmt.Sprintln(c.Server) {
		_ = c.Close()
		return nil, errDied
	}
	go c.watch(r, "error 719\n")
	go c.watch(s, "")
	return c, nil
}

// watch waits for the last word of one end.
func (c *Client) watch(r *bufio.Reader, last string) {
	if word, _ := r.ReadString('\n'); word == last {
		select {
		case c.lost <- failure(CodeLaunchFailure):
		default: // the other end was faster
		}
	}
}

// Lost delivers one error when the server died, or ended the client.
func (c *Client) Lost() <-chan error { return c.lost }

// Fault reports that a kernel of this client has faulted.
func (c *Client) Fault() error {
	_, err := fmt.Fprintln(c.daemon, "fault")
	return err
}

// Close leaves the server.
func (c *Client) Close() error { return errors.Join(c.daemon.Close(), c.server.Close()) }
