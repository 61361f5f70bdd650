package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec" //nolint:depguard // machines are booted here, and commands run on them
	"strings"
	"time"
)

// most is how much of a command's output an error carries, bytes.
const most = 1500

// call runs a command and returns what it printed on both of its outputs.
func call(ctx context.Context, stdin string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	// A daemon that was started keeps the outputs open.
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	text := out.String()
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", argv[0], err, tail(text))
	}
	return text, nil
}

// tail is the end of a text.
func tail(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = "… " + s[len(s)-most:]
	}
	return s
}

// until polls, for at most limit. The last answer is the reason for giving up.
func until(ctx context.Context, limit time.Duration, ask func() error) error {
	end := time.Now().Add(limit)
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %s: %w", limit, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
