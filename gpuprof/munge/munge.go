// Package munge runs munge and unmunge, which prove who on the cluster wrote a
// message.
package munge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Errors of Decode.
var (
	ErrInvalid  = errors.New("credential is not valid")
	ErrExpired  = errors.New("credential has expired, or the clocks differ")
	ErrReplayed = errors.New("credential was used before")
	// ErrDown: munged doesn't answer here.
	ErrDown = errors.New("munged does not answer")
)

// Munge talks to one munged.
type Munge struct {
	Socket string // "" = munge's own default
	// Bin is the folder of munge and unmunge, "" = the PATH.
	Bin string
}

// MaxPayload bounds what a credential may carry, bytes.
const MaxPayload = 4096

func (m *Munge) run(ctx context.Context, prog, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if m.Socket != "" {
		args = append(args, "--socket="+m.Socket)
	}
	path := prog
	if m.Bin != "" {
		path = m.Bin + "/" + prog
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %.200s", prog, err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

// Encode makes a credential of this process's user that carries payload.
// Returns ErrDown.
func (m *Munge) Encode(ctx context.Context, payload string) (string, error) {
	out, err := m.run(ctx, "munge", payload)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrDown, err)
	}
	return strings.TrimSpace(out), nil
}

// Credential is a decoded credential.
type Credential struct {
	UID     uint32
	Encoded time.Time
	Payload string
}

// shape is what munge prints; nothing else is handed to unmunge.
var shape = regexp.MustCompile(`^MUNGE:[A-Za-z0-9+/=]+:$`)

// Decode checks a credential. Returns ErrInvalid, ErrExpired, ErrReplayed or
// ErrDown.
func (m *Munge) Decode(ctx context.Context, cred string) (*Credential, error) {
	if len(cred) > 4*MaxPayload || !shape.MatchString(cred) {
		return nil, ErrInvalid
	}
	out, err := m.run(ctx, "unmunge", cred)
	c, status := parse(out)
	var exit *exec.ExitError
	if status < 0 && errors.As(err, &exit) {
		status = exit.ExitCode() // unmunge ends with munge's own error number
	}
	switch {
	case status == 0 && err == nil && c != nil:
		return c, nil
	case status == 15 || status == 16: // EMUNGE_CRED_EXPIRED, _REWOUND
		return nil, ErrExpired
	case status == 17: // EMUNGE_CRED_REPLAYED
		return nil, ErrReplayed
	case status > 0 && status != 6: // EMUNGE_SOCKET
		return nil, ErrInvalid
	}
	return nil, fmt.Errorf("%w: %w", ErrDown, err)
}

// parse reads unmunge's output: lines "NAME: text (number)", an empty line, the
// payload. status is -1 where none is given.
func parse(out string) (*Credential, int) {
	head, payload, ok := strings.Cut(out, "\n\n")
	if !ok {
		head = out
	}
	c := &Credential{Payload: payload}
	status, uid := -1, false
	sc := bufio.NewScanner(strings.NewReader(head))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		if !ok {
			continue
		}
		open := strings.LastIndexByte(rest, '(')
		if open < 0 {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest[open+1:]), ")"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "STATUS":
			status = int(n)
		case "UID":
			c.UID, uid = uint32(n), n >= 0 && n <= 1<<32-1
		case "ENCODE_TIME":
			c.Encoded = time.Unix(n, 0)
		}
	}
	if !uid {
		return nil, status
	}
	return c, status
}
