package mps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoDaemon says that no control daemon answers at the pipe directory. A CUDA program then runs
// without MPS.
var ErrNoDaemon = errors.New("no MPS control daemon")

// Client is a CUDA program's connection to its MPS server.
type Client struct {
	Server  int      // the server's pid
	Devices []string // UUIDs of the GPUs the server has, in its order

	conn *net.UnixConn
	lost chan error
}

// Connect connects to the MPS server through the control daemon of the pipe directory that getenv
// names, and waits until the daemon lets it in. It returns ErrNoDaemon, an *Error with CUDA's text,
// or ctx's error.
func Connect(ctx context.Context, getenv func(string) string) (*Client, error) {
	conn, err := dial(pipeDir(getenv), controlSock)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrPermission) ||
			errors.Is(err, unix.ENOTDIR) {
			return nil, ErrNoDaemon
		}
		return nil, &Error{Code: CodeConnectionFailed, Text: errorText(CodeConnectionFailed)}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	r := bufio.NewReaderSize(conn, maxLine)
	m, err := hello(conn, r)
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	c := &Client{Server: m.PID, Devices: m.Devices, conn: conn, lost: make(chan error, 1)}
	go c.watch(r)
	return c, nil
}

func hello(conn *net.UnixConn, r *bufio.Reader) (message, error) {
	failed := &Error{Code: CodeConnectionFailed, Text: errorText(CodeConnectionFailed)}
	if err := send(conn, message{Op: opHello, PID: os.Getpid()}); err != nil {
		return message{}, failed
	}
	m, err := receive(r)
	switch {
	case err != nil:
		return m, failed
	case m.Op == opError:
		return m, &Error{Code: m.Code, Text: errorText(m.Code)}
	case m.Op != opWelcome || m.PID <= 0:
		return m, failed
	}
	return m, nil
}

// receive reads one message.
func receive(r *bufio.Reader) (message, error) {
	var m message
	line, err := r.ReadSlice('\n')
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(line, &m)
}

// watch waits for the server's last word.
func (c *Client) watch(r *bufio.Reader) {
	m, err := receive(r)
	code := CodeLaunchFailure // the server is gone
	if err == nil && m.Op == opError {
		code = m.Code
	}
	c.lost <- &Error{Code: code, Text: errorText(code)}
}

// Lost delivers one error when the server died, or ended the client.
func (c *Client) Lost() <-chan error { return c.lost }

// Fault reports to the server that a kernel of this client has faulted.
func (c *Client) Fault() error { return send(c.conn, message{Op: opFault, PID: os.Getpid()}) }

// Close leaves the server.
func (c *Client) Close() error { return c.conn.Close() }
