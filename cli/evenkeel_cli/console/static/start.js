// Keep the key of the session where only pages of this port can read it, and open the console.
localStorage.setItem("evenkeel-console-key", document.documentElement.dataset.key);
location.replace("/");
