// Package munge runs munge and unmunge, which prove which user of the cluster wrote a
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
	ErrInvalid  = errors.New("the credential is not valid")
	ErrExpired  = errors.New("the credential has expired, or is not valid yet")
	ErrReplayed = errors.New("the credential was used before")
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
	cred := strings.TrimSpace(out)
	if !shape.MatchString(cred) {
		return "", fmt.Errorf("%w: munge's answer makes no sense", ErrDown)
	}
	return cred, nil
}

// Credential is a decoded credential.
type Credential struct {
	UID uint32
	// Encoded and Decoded are when it was made, by its host's clock, and when it
	// came here, by this host's; whole seconds.
	Encoded, Decoded time.Time
	Payload          string
}

// Behind is how far the sender's clock is behind this host's, give or take a
// second and the time the credential was on its way; negative: it is ahead.
func (c *Credential) Behind() time.Duration { return c.Decoded.Sub(c.Encoded) }

// skewed says what is wrong with a credential that is too old or from the future.
func (c *Credential) skewed() error {
	d, word := c.Behind(), "behind"
	if d < 0 {
		d, word = -d, "ahead of"
	}
	return fmt.Errorf("%w: made at %s by the sender's clock, and it is %s here: unless it was long on its way, the sender's clock is %s %s this host's",
		ErrExpired, c.Encoded.UTC().Format(time.RFC3339), c.Decoded.UTC().Format(time.RFC3339), d, word)
}

// shape is what munge prints; nothing else is handed to unmunge.
var shape = regexp.MustCompile(`^MUNGE:[A-Za-z0-9+/=]+:$`)

// Munge's error numbers (munge.h), with which unmunge also ends.
const (
	statusSnafu    = 1
	statusNoMemory = 5
	statusSocket   = 6
	statusTimeout  = 7
	statusExpired  = 15
	statusRewound  = 16
	statusReplayed = 17
)

// Decode checks a credential. Returns ErrInvalid, ErrExpired (with how far the
// clocks differ, and with the credential), ErrReplayed or ErrDown.
func (m *Munge) Decode(ctx context.Context, cred string) (*Credential, error) {
	if len(cred) > 4*MaxPayload || !shape.MatchString(cred) {
		return nil, ErrInvalid
	}
	// Without the host's name, whose look-up can be slow.
	out, err := m.run(ctx, "unmunge", cred, "--keys=STATUS,ENCODE_TIME,DECODE_TIME,UID")
	c, status := parse(out)
	var exit *exec.ExitError
	if status < 0 && errors.As(err, &exit) {
		status = exit.ExitCode()
	}
	switch status {
	case 0:
		if err == nil && c != nil {
			return c, nil
		}
		err = errors.Join(err, errors.New("unmunge's answer makes no sense"))
	case statusExpired, statusRewound:
		if c == nil {
			return nil, ErrExpired
		}
		return c, c.skewed()
	case statusReplayed:
		return nil, ErrReplayed
	case -1, statusSnafu, statusNoMemory, statusSocket, statusTimeout:
		// It says nothing about the credential.
	default:
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
		case "DECODE_TIME":
			c.Decoded = time.Unix(n, 0)
		}
	}
	if !uid {
		return nil, status
	}
	return c, status
}
