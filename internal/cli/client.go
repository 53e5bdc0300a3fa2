package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-quic/holdfast/internal/admin"
)

// answerTimeout is how long a supervisor may take to say something that it
// knows.
const answerTimeout = 30 * time.Second

// talk runs f with a client of the instance that the flags name, for at most
// the timeout (0 = no limit) and until the user interrupts it. It gives f's
// error the exit code that it stands for.
func (a *app) talk(ctx context.Context, timeout time.Duration, f func(context.Context, *admin.Client) error) error {
	if err := a.instance.resolve(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	limited, cancel := limit(ctx, timeout)
	defer cancel()
	c := admin.New(a.instance.socket())
	defer c.Close()
	err := f(limited, c)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &exitError{exitFailed, errors.New("interrupted")}
	}
	return answered(err, timeout)
}

// limit bounds a context; 0 is no limit.
func limit(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// answered gives an error of the admin API its exit code.
func answered(err error, timeout time.Duration) error {
	if e, ok := errors.AsType[*admin.Error](err); ok {
		switch {
		case e.Code == admin.CodeInvalidConfig:
			return &exitError{exitConfig, err}
		case e.Code == admin.CodeUsage && e.Status != http.StatusNotFound:
			return &exitError{exitUsage, err}
		case e.Code == admin.CodeTimeout:
			return &exitError{exitTimeout, err}
		}
		return err
	}
	switch {
	case errors.Is(err, admin.ErrNotRunning):
		return &exitError{exitNoSupervisor, err}
	case errors.Is(err, context.DeadlineExceeded):
		if timeout > 0 {
			err = fmt.Errorf("not done within %s", timeout)
		}
		return &exitError{exitTimeout, err}
	}
	return err
}

// sleep waits, or returns why it must not.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
